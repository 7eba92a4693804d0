// Loads a GGUF file in llama.cpp (through node-llama-cpp) and answers requests, one JSON value a line.
//
//   node llama_cpp.mjs MODEL.gguf TOKENS [NODE_MODULES]
//
// TOKENS: how many a request may hold together with its answer. The first line says what was loaded, or
// {"missing": why} where node-llama-cpp cannot run here. Without NODE_MODULES the package is looked for as
// node does from the current folder: node_modules there and above, then the global places, NODE_PATH
// among them.

import { existsSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join, resolve } from "node:path";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const [modelPath, tokens, folder] = process.argv.slice(2);

function say(value) {
    process.stdout.write(JSON.stringify(value) + "\n");
}

function findPackage() {
    const here = createRequire(pathToFileURL(join(process.cwd(), "here.js")));
    const places = folder ? [resolve(folder)] : here.resolve.paths("node-llama-cpp");
    return places.map((place) => join(place, "node-llama-cpp")).find((place) => existsSync(place));
}

async function openLibrary() {
    const place = findPackage();
    if (place === undefined)
        return { missing: "node-llama-cpp was not found" };
    try {
        const { version, exports } = JSON.parse(readFileSync(join(place, "package.json"), "utf8"));
        const library = await import(pathToFileURL(join(place, exports["."].import)));
        const llama = await library.getLlama({
            gpu: false,
            build: "never",
            skipDownload: true,
            progressLogs: false,
            logLevel: library.LlamaLogLevel.error,
            logger: (level, message) => process.stderr.write(message)
        });
        return { llama, version, release: llama.llamaCppRelease?.release };
    } catch (error) {
        return { missing: `node-llama-cpp at ${place} does not run here (${error.message})` };
    }
}

// Raw logits [T][257] of the token after each of the given ones.
async function logits(sequence, ids) {
    await sequence.clearHistory();
    const wanted = { generateNext: { logits: true, options: { temperature: 0 } } };
    const results = await sequence.controlledEvaluate(ids.map((id) => [id, wanted]));
    return results.map((result) => {
        if (result?.next?.logits === undefined)
            throw new Error("this version of node-llama-cpp gives no logits; update it");
        const row = new Array(result.next.logits.size);
        for (const [id, value] of result.next.logits)
            row[id] = value;
        return row;
    });
}

// The ids that llama.cpp goes on with. Its own generator ends at an end-of-generation token, unsaid.
async function greedy(sequence, ids, limit) {
    await sequence.clearHistory();
    const found = [];
    if (limit > 0)
        for await (const id of sequence.evaluate(ids, { temperature: 0 })) {
            found.push(id);
            if (found.length === limit)
                break;
        }
    return found;
}

const library = await openLibrary();
if (library.missing !== undefined) {
    say(library);
    process.exit(0);
}
const model = await library.llama.loadModel({ modelPath, gpuLayers: 0 });
// llama.cpp keeps keys and values in f16 by default, which alone moves log-probabilities by more than 1e-4.
// One token more than asked for: node-llama-cpp throws old tokens away when a context is full.
const context = await model.createContext({
    contextSize: Number(tokens) + 1,
    batchSize: Number(tokens) + 1,
    threads: 1,
    flashAttention: false,
    experimentalKvCacheKeyType: "F32",
    experimentalKvCacheValueType: "F32"
});
const sequence = context.getSequence();
say({
    version: library.version,
    release: library.release ?? "of unknown release",
    tokens: [...model.iterateAllTokens()].length,
    ends: [...model.iterateAllTokens()].filter((id) => model.isEogToken(id)),
    window: model.trainContextSize
});

const answers = {
    tokenize: ({ text, special }) => model.tokenize(text, special),
    detokenize: ({ ids }) => model.detokenize(ids),
    logits: ({ ids }) => logits(sequence, ids),
    greedy: ({ ids, limit }) => greedy(sequence, ids, limit)
};
for await (const line of createInterface({ input: process.stdin })) {
    const request = JSON.parse(line);
    try {
        say({ answer: await answers[request.do](request) });
    } catch (error) {
        say({ error: error.message });
    }
}
process.exit(0);
