//! The peak of memory of the read-out's forward and backward passes, measured in a process of its own.

use std::process::{Command, Stdio};

use burn::tensor::Device;
use serde_json::{Value, json};

use super::readout::{Inputs, Measured, Readout};
use super::{BenchError, Shape};
use crate::say::say;

/// Peak of one case.
#[derive(Clone, Debug, PartialEq)]
pub struct Peak {
    /// Name in the table of cases.
    pub case: String,
    /// The shape.
    pub shape: Readout,
    /// Resident bytes at the peak above those before the inputs were made, or why they are not known.
    pub bytes: Result<f64, String>,
}

impl Peak {
    /// The peak over the bytes of all inputs, outputs and gradients: 1 cannot be undercut by much.
    pub fn ratio(&self) -> Option<f64> {
        self.bytes.as_ref().ok().map(|bytes| bytes / self.shape.footprint() as f64)
    }
}

/// The command of the measuring process, behind `csa2 bench`.
pub const COMMAND: &str = "peak";

/// Starts this program again to measure `shape`. `flags` are passed on (backend and threads).
///
/// # Errors
/// When the process fails.
pub fn measure(case: &str, shape: &Readout, flags: &[String]) -> Result<Peak, BenchError> {
    let peak = |bytes| Peak { case: case.into(), shape: Readout { measured: Measured::Memory, ..*shape }, bytes };
    if resident("VmHWM").is_none() {
        return Ok(peak(Err("this system has no /proc/self/status to read it from".into())));
    }
    say(&format!("readout {case}, peak of memory: {}", super::shape::line(&shape.sizes())));
    let wrong = |error: &dyn std::fmt::Display| BenchError::Peak(error.to_string());
    let program = std::env::current_exe().map_err(|error| wrong(&error))?;
    let mut command = Command::new(program);
    command.args(["bench", COMMAND]).args(flags).stdin(Stdio::null()).stderr(Stdio::inherit());
    // Any one case will do: every size of it is replaced.
    command.arg(format!("--case={}", Readout::cases()[0].0));
    for (name, value) in shape.sizes() {
        command.arg(format!("--{name}={value}"));
    }
    let output = command.output().map_err(|error| wrong(&error))?;
    if !output.status.success() {
        return Err(wrong(&format!("it ended with {}", output.status)));
    }
    let value: Value = serde_json::from_slice(&output.stdout).map_err(|error| wrong(&error))?;
    Ok(peak(value["bytes"].as_f64().ok_or_else(|| value["reason"].as_str().unwrap_or("no figure").to_owned())))
}

/// What the measuring process prints: a tiny read-out first, so that threads and code are there, then the shape itself.
///
/// # Errors
/// When the device fails.
pub fn document(shape: &Readout, device: &Device, on_processor: bool) -> Result<Value, BenchError> {
    shape.check()?;
    if !on_processor {
        return Ok(json!({"reason": "the tensors lie in the device's memory, which tells no peak"}));
    }
    let device = device.clone().autodiff();
    Inputs::new(&Readout { batch: 2, seq: 8, entries: 8, heads: 2, dim: 4, topk: 2, ..*shape }, &device).both();
    let before = resident("VmRSS");
    Inputs::new(shape, &device).both();
    device.sync()?;
    Ok(match before.zip(resident("VmHWM")) {
        Some((before, peak)) => json!({"bytes": (peak - before).max(0.0)}),
        None => json!({"reason": "/proc/self/status cannot be read"}),
    })
}

/// Bytes of a line of this process's status.
fn resident(name: &str) -> Option<f64> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<f64>().ok()? * 1024.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peak_holds_at_least_what_is_alive_at_once() {
        let shape = Readout { seq: 512, entries: 512, topk: 4, window: 4, ..Readout::cases()[0].1 };
        let document = document(&shape, &Device::flex(), true).unwrap();
        // Other tests of this process may have peaked higher, and other systems tell nothing.
        match document["bytes"].as_f64() {
            Some(bytes) => assert!(bytes >= 0.0),
            None => assert!(document["reason"].is_string()),
        }
        assert!(super::super::peak::document(&shape, &Device::flex(), false).unwrap()["reason"].is_string());
        assert!(super::super::peak::document(&Readout { heads: 0, ..shape }, &Device::flex(), true).is_err());
    }
}
