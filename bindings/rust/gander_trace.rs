//! Writes what one run of an RWKV-7 engine showed to a trace file, which gander reads. Nothing but std.
//!
//! ```ignore
//! let mut trace = Trace::new(&Run { model, tokens, engine, dtype, path, ..Run::default() })?;
//! trace.add("blocks.0.att.w", &[rows, heads, size], &w)?; // in each call: its rows are appended
//! trace.add("blocks.0.state.wkv", &[heads, size, size], &state)?; // a state: the last one stays
//! trace.write("port.safetensors")?;
//! ```
//!
//! Names and axes of tensors: traces/taps.py of gander; the rules: traces/FORMAT.md.
// SPDX-License-Identifier: Apache-2.0
#![allow(dead_code)] // an engine need not use all of it

use std::fs::{remove_file, rename, File};
use std::io::{Error, ErrorKind, Result, Write};
use std::path::Path;

/// How the tokens were run, and by what.
#[derive(Clone, Debug, Default)]
pub struct Run<'a> {
    /// The checkpoint's fingerprint, which `gander inspect` prints.
    pub model: &'a str,
    /// Those of all calls.
    pub tokens: &'a [u32],
    pub engine: &'a str,
    /// What it computes in: float64, float32, bfloat16, float16.
    pub dtype: &'a str,
    /// How the tokens go in: prefill, step, split:5+3.
    pub path: &'a str,
    /// None for zero.
    pub start: Option<&'a str>,
    /// None for dense.
    pub attention: Option<&'a str>,
    /// None for not at all, else int8.
    pub quantized: Option<&'a str>,
}

/// What a run has shown so far.
#[derive(Clone, Debug)]
pub struct Trace {
    token_count: usize,
    metadata: String,     // as in the file
    tensors: Vec<Tensor>, // in the file's order: that in which they first came
}

#[derive(Clone, Debug)]
struct Tensor {
    name: String,
    shape: Vec<usize>,
    data: Vec<u8>, // as in the file
}

impl Tensor {
    /// A later call replaces a state; a tap gets the call's rows appended.
    fn is_state(&self) -> bool {
        self.name.contains(".state.")
    }
}

impl Trace {
    pub fn new(run: &Run) -> Result<Trace> {
        if run.tokens.is_empty() {
            return refused("the run has no tokens".into());
        }
        let tokens = format!("{:?}", run.tokens); // with ", " in between, as in JSON
        let start = run.start.unwrap_or("zero");
        let mut metadata = String::from("{\"gander.schema\": \"1\"");
        for (key, value) in [
            ("model", Some(run.model)),
            ("tokens", Some(tokens.as_str())),
            ("engine", Some(run.engine)),
            ("dtype", Some(run.dtype)),
            ("path", Some(run.path)),
            ("start", Some(start)),
            ("attention", run.attention.filter(|&policy| policy != "dense")),
            ("quantized", run.quantized.filter(|&scheme| scheme != "none")),
        ] {
            match value {
                None => {}
                Some("") => return refused(format!("the run has no {key}")),
                Some(value) => metadata += &format!(", \"gander.{key}\": {}", quoted(value)),
            }
        }
        metadata += "}";
        Ok(Trace { token_count: run.tokens.len(), metadata, tensors: Vec::new() })
    }

    /// Adds what one call showed.
    pub fn add(&mut self, name: &str, shape: &[usize], data: &[f32]) -> Result<()> {
        if shape.is_empty() || shape.len() > 4 {
            return refused(format!("{name} has {} axes, expected 1 to 4", shape.len()));
        }
        let count = shape.iter().try_fold(1, |count: usize, &size| count.checked_mul(size));
        if count != Some(data.len()) {
            return refused(format!("{name} has shape {shape:?}, but {} numbers", data.len()));
        }
        let mut bytes = Vec::new();
        reserve(&mut bytes, 4 * data.len())?;
        bytes.extend(data.iter().flat_map(|x| x.to_le_bytes()));
        match self.tensors.iter_mut().find(|tensor| tensor.name == name) {
            None => self.tensors.push(Tensor { name: name.into(), shape: shape.into(), data: bytes }),
            Some(state) if state.is_state() => (state.shape, state.data) = (shape.into(), bytes),
            Some(tap) if shape.len() == tap.shape.len() && shape[1..] == tap.shape[1..] => {
                reserve(&mut tap.data, bytes.len())?;
                tap.data.append(&mut bytes);
                tap.shape[0] += shape[0];
            }
            Some(tap) => {
                let before = &tap.shape;
                return refused(format!(
                    "{name} has shape {shape:?}, but had {before:?} before: only the number of rows may change"
                ));
            }
        }
        Ok(())
    }

    /// Writes the file beside `path` first: `path` appears when all is written.
    pub fn write(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let header = self.header()?;
        let mut partial = path.as_os_str().to_owned();
        partial.push(format!(".{}.partial", std::process::id()));
        let written = self.write_to(partial.as_ref(), &header).and_then(|()| rename(&partial, path));
        written.map_err(|error| {
            let _ = remove_file(&partial); // may not have been made
            Error::new(error.kind(), format!("cannot write {}: {error}", path.display()))
        })
    }

    fn write_to(&self, path: &Path, header: &str) -> Result<()> {
        let mut file = File::create(path)?;
        file.write_all(&(header.len() as u64).to_le_bytes())?;
        file.write_all(header.as_bytes())?;
        for tensor in &self.tensors {
            file.write_all(&tensor.data)?;
        }
        file.sync_all() // closing a file hides its errors
    }

    fn header(&self) -> Result<String> {
        if self.tensors.is_empty() {
            return refused("no tensor was added".into());
        }
        let mut text = format!("{{\"__metadata__\": {}", self.metadata);
        let mut begin = 0;
        for tensor in &self.tensors {
            let (name, shape, end) = (&tensor.name, &tensor.shape, begin + tensor.data.len());
            if !tensor.is_state() && shape[0] != self.token_count {
                return refused(format!("{name} has {} rows for {} tokens", shape[0], self.token_count));
            }
            text += &format!(", {}: {{\"dtype\": \"F32\", \"shape\": {shape:?}, ", quoted(name));
            text += &format!("\"data_offsets\": [{begin}, {end}]}}");
            begin = end;
        }
        text += "}";
        text += &" ".repeat(text.len().next_multiple_of(8) - text.len()); // numbers from a multiple of eight on
        Ok(text)
    }
}

fn refused<T>(problem: String) -> Result<T> {
    Err(Error::new(ErrorKind::InvalidInput, problem))
}

fn reserve(bytes: &mut Vec<u8>, more: usize) -> Result<()> {
    bytes.try_reserve(more).map_err(|_| Error::from(ErrorKind::OutOfMemory))
}

/// A JSON string, as Python's json writes it: ASCII, and \u with the digits of UTF-16 for the rest.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for unit in text.encode_utf16() {
        match char::from_u32(unit.into()).unwrap_or('\0') {
            '\x08' => quoted += "\\b",
            '\x0c' => quoted += "\\f",
            '\n' => quoted += "\\n",
            '\r' => quoted += "\\r",
            '\t' => quoted += "\\t",
            special @ ('"' | '\\') => quoted.extend(['\\', special]),
            plain @ ' '..='~' => quoted.push(plain),
            _ => quoted += &format!("\\u{unit:04x}"),
        }
    }
    quoted + "\""
}
