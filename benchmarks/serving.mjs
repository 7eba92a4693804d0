// Generates with llama.cpp (through node-llama-cpp) in several sequences of one context, which it batches.
//
//   node serving.mjs NODE_MODULES MODEL.gguf THREADS WINDOW
//
// Reads one request a line, {sequences, prompt, limit}, and answers {seconds, first: [seconds of each]}.
// The end-of-generation token ends nothing here, so every sequence gives `limit` tokens.

import { readFileSync } from "node:fs";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const [folder, path, threads, window] = process.argv.slice(2);
const place = join(folder, "node-llama-cpp");
const { version, exports } = JSON.parse(readFileSync(join(place, "package.json"), "utf8"));
const library = await import(pathToFileURL(join(place, exports["."].import)));
const llama = await library.getLlama({
    gpu: false, build: "never", skipDownload: true, progressLogs: false, logLevel: library.LlamaLogLevel.error,
    maxThreads: Number(threads), logger: (level, message) => process.stderr.write(message)
});
const model = await llama.loadModel({ modelPath: path, gpuLayers: 0 });
let context, sequences = [];

const say = (value) => process.stdout.write(JSON.stringify(value) + "\n");
const seconds = (since) => (performance.now() - since) / 1000;

async function prepare(count) {
    if (sequences.length === count)
        return;
    await context?.dispose();
    context = await model.createContext({
        sequences: count, contextSize: Number(window), batchSize: 512, threads: Number(threads),
        flashAttention: false, experimentalKvCacheKeyType: "F32", experimentalKvCacheValueType: "F32"
    });
    sequences = Array.from({ length: count }, () => context.getSequence());
}

async function generate(sequence, seed, prompt, limit, began) {
    await sequence.clearHistory();
    let count = 0, first = 0;
    for await (const _ of sequence.evaluate(prompt, { temperature: 1, seed, yieldEogToken: true })) {
        first ||= seconds(began);
        count += 1;
        if (count === limit)
            break;
    }
    if (count !== limit)
        throw new Error(`sequence ${seed} ended after ${count} of ${limit} tokens`);
    return first;
}

say({ version, release: llama.llamaCppRelease?.release });
for await (const line of createInterface({ input: process.stdin })) {
    const request = JSON.parse(line);
    await prepare(request.sequences);
    const began = performance.now();
    const first = await Promise.all(
        sequences.map((sequence, seed) => generate(sequence, seed, request.prompt, request.limit, began)));
    say({ seconds: seconds(began), first });
}
process.exit(0);
