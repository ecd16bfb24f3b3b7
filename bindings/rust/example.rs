// A made-up engine of one block and two heads, and how it writes its trace.
//     rustc --edition 2021 example.rs && ./example port.safetensors [step | prefill] [ENGINE]
mod gander_trace;

use gander_trace::{Run, Trace};

const HEADS: usize = 2;
const SIZE: usize = 4;
const VOCAB: usize = 9;

/// What a real engine computes: here whole numbers / 256, told apart by `first`.
fn numbers(first: i32, count: usize) -> Vec<f32> {
    (first..).take(count).map(|i| i as f32 / 256.0).collect()
}

fn main() -> std::process::ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    if arguments.len() < 2 {
        eprintln!("usage: {} FILE [step | prefill] [ENGINE]", arguments[0]);
        return 2.into();
    }
    let path = arguments.get(2).map_or("step", String::as_str);
    let engine = arguments.get(3).map_or("my port", String::as_str);
    match trace(&arguments[1], path, engine) {
        Ok(()) => 0.into(),
        Err(error) => {
            eprintln!("{error}");
            1.into()
        }
    }
}

fn trace(file: &str, path: &str, engine: &str) -> std::io::Result<()> {
    let run = Run {
        model: "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
        tokens: &[0, 7, 7],
        engine,
        dtype: "float32",
        path,
        start: Some("random:7"),
        ..Run::default()
    };
    let mut trace = Trace::new(&run)?;
    let rows = if path == "step" { 1 } else { run.tokens.len() }; // of a call
    for t in (0..run.tokens.len()).step_by(rows) {
        // one pass is one call of the engine
        let w = numbers((t * HEADS * SIZE) as i32, rows * HEADS * SIZE);
        let state = numbers(-100 * (t + rows) as i32, HEADS * SIZE * SIZE);
        let logits = numbers((1000 + t * VOCAB) as i32, rows * VOCAB);
        trace.add("blocks.0.att.w", &[rows, HEADS, SIZE], &w)?;
        trace.add("blocks.0.state.wkv", &[HEADS, SIZE, SIZE], &state)?;
        trace.add("logits", &[rows, VOCAB], &logits)?;
    }
    trace.write(file)
}
