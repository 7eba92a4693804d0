// llama.cpp, through node-llama-cpp, as a program that answers requests, one JSON value a line.
//
//   node llama_cpp.mjs [NODE_MODULES]
//
// The first line says what was found, or {"missing": why} where node-llama-cpp cannot run here. Without
// NODE_MODULES the package is looked for as node does from the current folder: node_modules there and
// above, then the global places, NODE_PATH among them.

import { existsSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join, resolve } from "node:path";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const folder = process.argv[2];

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

let model, sequence;

// Loads a GGUF file in place of the one before. `tokens`: what a request may hold with its answer.
async function load({ path, tokens, threads }) {
    await model?.dispose();
    model = await library.llama.loadModel({ modelPath: path, gpuLayers: 0 });
    // One token more than asked for: node-llama-cpp throws old tokens away when a context is full. And keys
    // and values in f32: in f16, the default, they alone move log-probabilities by more than 1e-4.
    const context = await model.createContext({
        contextSize: tokens + 1,
        batchSize: tokens + 1,
        threads,
        flashAttention: false,
        experimentalKvCacheKeyType: "F32",
        experimentalKvCacheValueType: "F32"
    });
    sequence = context.getSequence();
    const ids = [...model.iterateAllTokens()];
    return {
        tokens: ids.length,
        ends: ids.filter((id) => model.isEogToken(id)),
        window: model.trainContextSize
    };
}

// Raw logits [T][257] of the token after each of the given ones.
async function logits({ ids }) {
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
async function greedy({ ids, limit }) {
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

const answers = {
    load,
    logits,
    greedy,
    tokenize: ({ text, special }) => model.tokenize(text, special),
    detokenize: ({ ids }) => model.detokenize(ids)
};

const library = await openLibrary();
if (library.missing !== undefined) {
    say(library);
    process.exit(0);
}
say({ version: library.version, release: library.release ?? "of unknown release" });
for await (const line of createInterface({ input: process.stdin })) {
    const request = JSON.parse(line);
    try {
        say({ answer: await answers[request.do](request) });
    } catch (error) {
        say({ error: error.message });
    }
}
process.exit(0);
