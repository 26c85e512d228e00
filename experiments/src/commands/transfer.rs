//! What importing and exporting share: progress in bytes, and aligned lines.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::plan::units;
use crate::say::say;

/// Seconds between two plain lines.
const PLAIN_INTERVAL: Duration = Duration::from_secs(15);

/// Tells how many bytes are written: a bar on a terminal, plain lines elsewhere where it takes long.
pub struct Progress {
    bar: Option<ProgressBar>,
    last_line: Instant,
}

impl Progress {
    pub fn new() -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(4));
            let template =
                "{bar:32} {percent:>3}%  {binary_bytes} of {binary_total_bytes}, {binary_bytes_per_sec}, {eta} left";
            bar.set_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar
        });
        Self { bar, last_line: Instant::now() }
    }

    /// `written` of `total` bytes are on the disk.
    pub fn at(&mut self, written: u64, total: u64) {
        if let Some(bar) = &self.bar {
            bar.set_length(total);
            bar.set_position(written);
        } else if self.last_line.elapsed() >= PLAIN_INTERVAL {
            self.last_line = Instant::now();
            let percent = 100.0 * written as f64 / total.max(1) as f64;
            say(&format!("{percent:>3.0}%  {} of {}", size(written), size(total)));
        }
    }

    /// Takes the bar away.
    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// Bytes as people read them.
pub fn size(bytes: u64) -> String {
    units::bytes(bytes as f64)
}

/// A number of things, `1 tensor`, `2 tensors`.
pub fn counted(number: usize, name: &str) -> String {
    format!("{number} {name}{}", if number == 1 { "" } else { "s" })
}

/// Lines with a first column of names: a name stands before the first of its lines only.
pub fn lines(groups: &[(&str, Vec<String>)]) -> String {
    let width = groups.iter().map(|(name, _)| name.len()).max().unwrap_or(0) + 2;
    let mut text = String::new();
    for (name, lines) in groups {
        for (at, line) in lines.iter().enumerate() {
            let name = if at == 0 { name } else { "" };
            text.push_str(format!("{name:width$}{line}").trim_end());
            text.push('\n');
        }
    }
    text
}

/// Cells in columns; those of the columns in `right` are aligned to the right.
pub fn columns(rows: &[Vec<String>], right: &[usize]) -> Vec<String> {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let cell = |(column, text): (usize, &String)| {
        let width = width(column);
        if right.contains(&column) { format!("{text:>width$}") } else { format!("{text:width$}") }
    };
    rows.iter().map(|row| row.iter().enumerate().map(cell).collect::<Vec<_>>().join("  ")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stand_once_and_columns_are_aligned() {
        let rows = [vec!["BF16".into(), "3 tensors".into()], vec!["F8_E4M3".into(), "12 tensors".into()]];
        let text = lines(&[("read", columns(&rows, &[1])), ("run", vec!["out".into()])]);
        assert_eq!(text, "read  BF16      3 tensors\n      F8_E4M3  12 tensors\nrun   out\n");
        assert_eq!((counted(1, "file"), counted(0, "file")), ("1 file".into(), "0 files".into()));
    }
}
