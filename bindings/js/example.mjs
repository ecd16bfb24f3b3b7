// A made-up engine of one block and two heads, and how it writes its trace.
//     node example.mjs port.safetensors [step | prefill] [ENGINE]
import { Trace } from "./gander_trace.mjs";

const [HEADS, SIZE, VOCAB] = [2, 4, 9];

/** What a real engine computes: here whole numbers / 256, told apart by `first`. */
const numbers = (first, count) => Float32Array.from({ length: count }, (_, i) => (first + i) / 256);

const [file, path = "step", engine = "my port"] = process.argv.slice(2);
if (!file) {
  console.error("usage: node example.mjs FILE [step | prefill] [ENGINE]");
  process.exit(2);
}

const tokens = [0, 7, 7];
const trace = new Trace({
  model: "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
  tokens,
  engine,
  dtype: "float32",
  path,
  start: "random:7",
});
const rows = path === "step" ? 1 : tokens.length; // of a call
for (let t = 0; t < tokens.length; t += rows) {
  // one pass is one call of the engine
  trace.add("blocks.0.att.w", [rows, HEADS, SIZE], numbers(t * HEADS * SIZE, rows * HEADS * SIZE));
  trace.add("blocks.0.state.wkv", [HEADS, SIZE, SIZE], numbers(-100 * (t + rows), HEADS * SIZE * SIZE));
  trace.add("logits", [rows, VOCAB], numbers(1000 + t * VOCAB, rows * VOCAB));
}
try {
  await trace.write(file);
} catch (error) {
  console.error(error.message);
  process.exitCode = 1;
}
