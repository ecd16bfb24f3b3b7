// Writes what one run of an RWKV-7 engine showed to a trace file, which gander reads. Node, browsers; no dependency.
//
//     const trace = new Trace({ model, tokens, engine, dtype, path });
//     trace.add("blocks.0.att.w", [rows, heads, size], w); // in each call: its rows are appended
//     trace.add("blocks.0.state.wkv", [heads, size, size], state); // a state: the last one stays
//     await trace.write("port.safetensors"); // in a browser: new Blob([trace.bytes()])
//
// Names and axes of tensors: traces/taps.py of gander; the rules: traces/FORMAT.md. What cannot be done throws.
// SPDX-License-Identifier: Apache-2.0

const BIG_ENDIAN = new Uint8Array(new Uint16Array([1]).buffer)[0] === 0;

/** What a run has shown so far. */
export class Trace {
  #tokenCount;
  #metadata; // as in the file
  #tensors = new Map(); // in the file's order: that in which they first came

  /**
   * @param {object} run
   * @param {string} run.model the checkpoint's fingerprint, which `gander inspect` prints
   * @param {ArrayLike<number>} run.tokens those of all calls
   * @param {string} run.engine its name
   * @param {string} run.dtype what it computes in: float64, float32, bfloat16, float16
   * @param {string} run.path how the tokens go in: prefill, step, split:5+3
   * @param {string} [run.start] @param {string} [run.attention] @param {string} [run.quantized]
   */
  constructor(run) {
    const { model, tokens, engine, dtype, path, start = "zero", ...more } = run;
    const { attention = "dense", quantized = "none", ...unknown } = more;
    for (const key in unknown) throw new Error(`a run has no ${key}`);
    const ids = Array.from(tokens ?? []);
    if (!ids.length) throw new Error("the run has no tokens");
    const wrong = ids.find((id) => !Number.isSafeInteger(id) || id < 0);
    if (wrong !== undefined) throw new Error(`token ${wrong} is not a whole number from 0 up`);
    const metadata = { schema: "1", model, tokens: list(ids), engine, dtype, path, start };
    if (attention !== "dense") metadata.attention = attention;
    if (quantized !== "none") metadata.quantized = quantized;
    for (const [key, value] of Object.entries(metadata))
      if (typeof value !== "string" || !value) throw new Error(`the run has no ${key}`);
    this.#tokenCount = ids.length;
    this.#metadata = dictionary(Object.entries(metadata).map(([key, value]) => [`gander.${key}`, quoted(value)]));
  }

  /** Adds what one call showed, a Float32Array; it is copied. */
  add(name, shape, data) {
    if (data?.[Symbol.toStringTag] !== "Float32Array") throw new Error(`${name} is no Float32Array`);
    if (shape.length < 1 || shape.length > 4) throw new Error(`${name} has ${shape.length} axes, expected 1 to 4`);
    const whole = Array.from(shape).every((size) => Number.isSafeInteger(size) && size >= 0);
    if (!whole || shape.reduce((count, size) => count * size) !== data.length)
      throw new Error(`${name} has shape ${list(shape)}, but ${data.length} numbers`);

    const state = name.includes(".state."); // a later call replaces it; a tap gets the call's rows appended
    const [rows, ...row] = shape;
    const tensor = (!state && this.#tensors.get(name)) || { state, rows: 0, row, parts: [] };
    if (list(row) !== list(tensor.row)) {
      const before = list([tensor.rows, ...tensor.row]);
      throw new Error(`${name} has shape ${list(shape)}, but had ${before} before: only the number of rows may change`);
    }
    const part = new Uint8Array(data.buffer, data.byteOffset, data.byteLength).slice();
    // The file is little-endian.
    for (let i = 0; BIG_ENDIAN && i < part.length; i += 4) part.subarray(i, i + 4).reverse();
    tensor.rows += rows;
    tensor.parts.push(part);
    this.#tensors.set(name, tensor);
  }

  /** The file, as one Uint8Array. */
  bytes() {
    const parts = this.#parts();
    const bytes = new Uint8Array(parts.reduce((size, part) => size + part.length, 0));
    let begin = 0;
    for (const part of parts) {
      bytes.set(part, begin);
      begin += part.length;
    }
    return bytes;
  }

  /** Writes the file, where there is `node:fs`: beside `path` first, so that `path` appears when all is written. */
  async write(path) {
    const parts = this.#parts();
    const fs = await import(/* webpackIgnore: true */ "node:fs/promises").catch(() => {
      throw new Error(`cannot write ${path}: there is no node:fs here, only bytes()`);
    });
    const partial = `${path}.${process.pid}.partial`;
    try {
      await fs.writeFile(partial, parts);
      await fs.rename(partial, path);
    } catch (error) {
      await fs.rm(partial, { force: true }).catch(() => {}); // may not have been made
      throw new Error(`cannot write ${path}: ${error.message}`, { cause: error });
    }
  }

  /** The file in pieces: more may be written than one array holds. */
  #parts() {
    if (!this.#tensors.size) throw new Error("no tensor was added");
    const entries = [["__metadata__", this.#metadata]];
    let begin = 0;
    for (const [name, { state, rows, row, parts }] of this.#tensors) {
      if (!state && rows !== this.#tokenCount)
        throw new Error(`${name} has ${rows} rows for ${this.#tokenCount} tokens`);
      const end = parts.reduce((size, part) => size + part.length, begin);
      const [shape, offsets] = [list([rows, ...row]), list([begin, end])];
      entries.push([name, dictionary([["dtype", '"F32"'], ["shape", shape], ["data_offsets", offsets]])]);
      begin = end;
    }
    const text = dictionary(entries);
    const header = new TextEncoder().encode(text.padEnd(Math.ceil(text.length / 8) * 8)); // ASCII
    const length = new Uint8Array(8);
    new DataView(length.buffer).setBigUint64(0, BigInt(header.length), true);
    return [length, header, ...[...this.#tensors.values()].flatMap(({ parts }) => parts)];
  }
}

// JSON as Python's json writes it: ", " and ": ", and ASCII only.
function list(numbers) {
  return `[${Array.from(numbers).join(", ")}]`;
}

function dictionary(entries) {
  return `{${entries.map(([key, value]) => `${quoted(key)}: ${value}`).join(", ")}}`;
}

function quoted(text) {
  if (/\p{Surrogate}/u.test(text)) throw new Error(`half a character in ${JSON.stringify(text)}`);
  return JSON.stringify(text).replace(/[\x7f-\uffff]/g, (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`);
}
