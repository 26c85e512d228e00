//! Telling how far runs or measurements are: a bar on a terminal, plain lines elsewhere.

use std::io::IsTerminal;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::say::say;

/// Seconds between two plain lines.
const PLAIN_INTERVAL: Duration = Duration::from_secs(15);

/// Progress over all runs or measurements together, counted in tokens.
pub struct Progress {
    bar: Option<ProgressBar>,
    started: Instant,
    total: AtomicU64,
    /// Tokens of runs that were there before.
    before: u64,
    done: AtomicU64,
    last_line: Mutex<Instant>,
}

impl Progress {
    /// `total` tokens in all, `before` of which earlier calls trained.
    pub fn new(total: u64, before: u64) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr_with_hz(4));
            let template = "{bar:32} {percent:>3}%  {elapsed} gone, {msg}";
            bar.set_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar.set_position(before);
            bar.enable_steady_tick(Duration::from_millis(500));
            bar
        });
        let now = Instant::now();
        let (total, done) = (AtomicU64::new(total), AtomicU64::new(before));
        Self { bar, started: now, total, before, done, last_line: Mutex::new(now) }
    }

    /// Says how many tokens there are besides those done, where that turns out to be another number than expected.
    pub fn left(&self, tokens: u64) {
        let total = self.done.load(Ordering::Relaxed) + tokens;
        self.total.store(total, Ordering::Relaxed);
        if let Some(bar) = &self.bar {
            bar.set_length(total);
        }
    }

    /// Adds `tokens` just trained or measured.
    pub fn add(&self, tokens: u64) {
        let done = self.done.fetch_add(tokens, Ordering::Relaxed) + tokens;
        if let Some(bar) = &self.bar {
            bar.set_position(done);
            bar.set_message(self.state(done));
        } else if let Ok(mut last) = self.last_line.try_lock()
            && last.elapsed() >= PLAIN_INTERVAL
        {
            *last = Instant::now();
            let percent = 100.0 * done as f64 / self.total.load(Ordering::Relaxed).max(1) as f64;
            say(&format!("{percent:>3.0}%  {}", self.state(done)));
        }
    }

    /// Prints a line above the bar.
    pub fn say(&self, line: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| say(line)),
            None => say(line),
        }
    }

    /// Takes the bar away.
    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }

    fn state(&self, done: u64) -> String {
        let seconds = self.started.elapsed().as_secs_f64();
        let rate = done.saturating_sub(self.before) as f64 / seconds.max(1e-3);
        let left = (self.total.load(Ordering::Relaxed).saturating_sub(done)) as f64 / rate.max(1e-3);
        format!("{} tokens/s, {} left", thousands(rate), duration(left))
    }
}

fn thousands(rate: f64) -> String {
    if rate >= 10_000.0 { format!("{:.0}k", rate / 1000.0) } else { format!("{rate:.0}") }
}

/// Seconds as a person says them.
pub fn duration(seconds: f64) -> String {
    let whole = seconds.min(1e9).round() as u64;
    match whole {
        1_000_000_000.. => "over 30 years".into(),
        0..60 => format!("{whole} s"),
        60..3600 => format!("{} min {:02} s", whole / 60, whole % 60),
        _ => format!("{} h {:02} min", whole / 3600, whole / 60 % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_well() {
        let said: Vec<String> = [0.4, 59.4, 61.0, 3599.0, 7260.0, 1e18].into_iter().map(duration).collect();
        assert_eq!(said, ["0 s", "59 s", "1 min 01 s", "59 min 59 s", "2 h 01 min", "over 30 years"]);
        assert_eq!((thousands(950.0), thousands(12_345.0)), ("950".into(), "12k".into()));
    }
}
