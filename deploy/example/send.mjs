// Sends one webhook in each of the four ways: docs/sending.md. Run it with Node.
import { request } from "node:http";

const holdfast = "http://127.0.0.1:8800";
const target = "http://127.0.0.1:9000/hook";

async function post(url, body, headers = {}) {
  const answer = await fetch(url, { method: "POST", body: JSON.stringify(body), headers });
  if (!answer.ok) throw new Error(await answer.text());
  console.log((await answer.json()).id);
}

await post(`${holdfast}/${target}`, { way: "prefix" });
await post(`${holdfast}/to/example/orders`, { way: "route" });
await post(holdfast, { way: "header" }, { "Holdfast-Target": target });

request(holdfast, { method: "POST", path: target }, (answer) => {
  if (answer.statusCode !== 202) throw new Error(`refused with ${answer.statusCode}`);
  console.log(answer.headers["holdfast-message-id"]);
  answer.resume();
}).end(JSON.stringify({ way: "proxy" }));
