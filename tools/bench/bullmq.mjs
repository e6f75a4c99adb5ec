// BullMQ in three roles: `record` writes down the requests that its client makes, `send` sends a workload at its
// times, `work` runs a worker. One argument: a JSON object. Answers are JSON lines, all times in ms.
import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";
import { Queue, Worker } from "bullmq";
import { Redis } from "ioredis";

const [role, given] = [process.argv[2], JSON.parse(process.argv[3])];
const NAME = "bench";
const connect = () => new Redis({ host: "127.0.0.1", port: given.port, maxRetriesPerRequest: null });
const say = (line) => process.stdout.write(JSON.stringify(line) + "\n");
const now = () => performance.timeOrigin + performance.now();
const listOf = (conversation) => `{bull}:list:${conversation}`;

// Debounce mode as documented. The variant that keeps all messages has them in a list, and its job says only that
// there is work; keepLastIfActive makes a job of what comes while the last one is worked on.
const options = (conversation, delay) => ({
  delay,
  removeOnComplete: true,
  deduplication: {
    id: conversation, ttl: delay, extend: true, replace: true, ...(given.keepAll && { keepLastIfActive: true }),
  },
});

async function add(queue, redis, { conversation, body, delay }) {
  if (!delay) return queue.add(NAME, { conversation, body }, { removeOnComplete: true });
  if (!given.keepAll) return queue.add(NAME, { conversation, body }, options(conversation, delay));
  const kept = redis.rpush(listOf(conversation), body);
  const added = queue.add(NAME, { conversation }, options(conversation, delay));
  return Promise.all([kept, added]);
}

async function* lines() {
  for await (const line of createInterface({ input: process.stdin })) yield JSON.parse(line);
}

async function record() {
  const redis = connect();
  const queue = new Queue(NAME, { connection: redis, prefix: "{bull}" });
  await queue.waitUntilReady();
  // The first call of a script teaches it to the server.
  await add(queue, redis, { conversation: "warm-up", body: "", delay: 1 });
  for await (const message of lines()) {
    const requests = [];
    const send = redis.sendCommand;
    redis.sendCommand = function (command, ...rest) {
      requests.push(Buffer.from(command.toWritable(redis.stream)).toString("base64"));
      return send.call(this, command, ...rest);
    };
    await add(queue, redis, message);
    redis.sendCommand = send;
    say(requests);
  }
  await queue.close();
  redis.disconnect();
}

// As many adds under way as there are clients, from one process: what BullMQ's own client takes.
async function flood() {
  const redis = connect();
  const queue = new Queue(NAME, { connection: redis, prefix: "{bull}" });
  await queue.waitUntilReady();
  const messages = [];
  for await (const message of lines()) messages.push(message);
  const [began, cpu] = [now(), process.cpuUsage()];
  let next = 0;
  const client = async () => { while (next < messages.length) await add(queue, redis, messages[next++]); };
  await Promise.all(Array.from({ length: given.clients }, client));
  const used = process.cpuUsage(cpu);
  say({ ms: now() - began, cpuUs: used.user + used.system });
  await queue.close();
  redis.disconnect();
}

async function send() {
  const redis = connect();
  const queue = new Queue(NAME, { connection: redis, prefix: "{bull}" });
  await queue.waitUntilReady();
  const under = [];
  say("ready");
  for await (const message of lines()) {
    const early = message.at - now();
    if (early > 1) await sleep(early);
    under.push(add(queue, redis, message));
  }
  await Promise.all(under);
  say("sent");
  await queue.close();
  redis.disconnect();
}

async function work() {
  const redis = connect();
  const worker = new Worker(
    NAME,
    async (job) => {
      const line = { c: job.data.conversation, due: job.timestamp + (job.opts.delay ?? 0), claimed: now() };
      const bodies = given.keepAll ? await redis.lrange(listOf(line.c), 0, -1) : [job.data.body];
      if (given.workMs) await sleep(given.workMs);
      say({ ...line, bodies: bodies.map((body) => body.slice(0, 100)) });
      if (given.keepAll) await redis.ltrim(listOf(line.c), bodies.length, -1);
    },
    { connection: connect(), prefix: "{bull}", concurrency: 100 },
  );
  worker.on("error", (error) => process.stderr.write(`${error}\n`));
  await worker.waitUntilReady();
  say("ready");
}

await { record, flood, send, work }[role]();
