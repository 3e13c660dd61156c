// The front of the BullMQ peer: a webhook is acknowledged once Redis has it on disk.
import { Queue } from "bullmq";
import Fastify from "fastify";
import { Redis } from "ioredis";

const { PORT, REDIS_PORT } = process.env;
const queue = new Queue("webhooks", {
  connection: new Redis(Number(REDIS_PORT), "127.0.0.1", { maxRetriesPerRequest: null }),
  defaultJobOptions: { attempts: 12, backoff: { type: "exponential", delay: 84_800 }, removeOnComplete: true },
});
const app = Fastify({ bodyLimit: 2 << 20 });
app.removeAllContentTypeParsers();
app.addContentTypeParser("*", { parseAs: "string" }, (request, body, done) => done(null, body));
app.post("/*", async (request, reply) => {
  const job = await queue.add("webhook", { type: request.headers["content-type"], body: request.body });
  return reply.code(202).send({ id: job.id });
});
await queue.waitUntilReady();
await app.listen({ host: "127.0.0.1", port: Number(PORT) });
