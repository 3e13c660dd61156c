// The back of the BullMQ peer: 64 deliveries in flight on kept-alive connections.
import { Worker } from "bullmq";
import { Redis } from "ioredis";
import { Pool } from "undici";

const { REDIS_PORT, TARGET } = process.env;
const target = new URL(TARGET);
const pool = new Pool(target.origin, { connections: 64, pipelining: 1, headersTimeout: 30_000 });

async function deliver(job) {
  const headers = { "content-type": job.data.type, "webhook-id": job.id };
  const { statusCode, body } = await pool.request({ path: target.pathname, method: "POST", headers, body: job.data.body });
  await body.dump();
  if (statusCode < 200 || statusCode > 299) throw new Error(`answered ${statusCode}`);
}

const connection = new Redis(Number(REDIS_PORT), "127.0.0.1", { maxRetriesPerRequest: null });
new Worker("webhooks", deliver, { connection, concurrency: 64 });
