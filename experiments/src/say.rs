//! Lines for people, on standard error.

use std::io::{Write, stderr};

/// Prints a line. Where nobody reads any more (`csa2 ablate … 2>&1 | head`, a closed terminal) the work goes on, which
/// `eprintln!` would end.
pub fn say(line: &str) {
    if cfg!(test) {
        // The test harness keeps what this prints until a test fails.
        eprintln!("{line}");
    } else {
        let _ = writeln!(stderr(), "{line}");
    }
}
