//! Prepares training batches on a thread of its own while the network computes.
//!
//! Batches are functions of seed and step, so preparing them ahead changes when they are made,
//! never what they hold.

use std::any::Any;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};

use crate::tasks::{Batch, Task};

/// Batches that wait at most. One more is in the making.
pub const DEPTH: usize = 3;

/// The training batches of a range of steps, in order.
///
/// An iterator that gives each step with its batch; after an error it ends. Dropping it stops the
/// thread as soon as the batch in the making is done.
pub struct Prefetch {
    /// `None` once closed, which is what tells the thread to stop.
    batches: Option<Receiver<(u64, Batch)>>,
    thread: Option<JoinHandle<()>>,
    next_step: u64,
}

/// Why there is no batch.
#[derive(Debug, thiserror::Error)]
pub enum PrefetchError {
    /// The system gave no thread.
    #[error(
        "cannot start the thread that prepares batches: {0}; the limit on threads or memory may \
         be reached"
    )]
    Start(io::Error),
    /// The task panicked.
    #[error("the task failed while preparing the batch of step {step}: {message}")]
    Panicked {
        /// The step whose batch is missing.
        step: u64,
        /// What the panic said.
        message: String,
    },
}

impl Prefetch {
    /// Starts to prepare batches of `rows` sequences for `steps` in the run with seed `seed`.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn start(task: Arc<dyn Task>, seed: u64, rows: usize, steps: Range<u64>) -> Result<Self, PrefetchError> {
        let (sender, receiver) = sync_channel(DEPTH);
        let next_step = steps.start;
        let thread = thread::Builder::new()
            .name("prefetch".into())
            .spawn(move || prepare(task.as_ref(), seed, rows, steps, &sender))
            .map_err(PrefetchError::Start)?;
        Ok(Self { batches: Some(receiver), thread: Some(thread), next_step })
    }

    /// Stops the thread and says whether it panicked.
    fn close(&mut self) -> Result<(), PrefetchError> {
        self.batches = None;
        let Some(thread) = self.thread.take() else {
            return Ok(());
        };
        thread.join().map_err(|panic| PrefetchError::Panicked { step: self.next_step, message: panic_message(&*panic) })
    }
}

fn prepare(task: &dyn Task, seed: u64, rows: usize, steps: Range<u64>, sender: &SyncSender<(u64, Batch)>) {
    for step in steps {
        let batch = task.train_batch(seed, step, rows);
        if sender.send((step, batch)).is_err() {
            // Nobody listens any more.
            return;
        }
    }
}

fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message").to_owned()
}

impl Iterator for Prefetch {
    type Item = Result<(u64, Batch), PrefetchError>;

    fn next(&mut self) -> Option<Self::Item> {
        // The channel also ends when the thread unwinds: a panic cannot leave us waiting.
        if let Ok((step, batch)) = self.batches.as_ref()?.recv() {
            self.next_step = step + 1;
            return Some(Ok((step, batch)));
        }
        self.close().err().map(Err)
    }
}

impl Drop for Prefetch {
    fn drop(&mut self) {
        // A panic for a batch that nobody asked for has already been printed; there is no one to
        // tell.
        let _ = self.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tasks::{Metric, MqarConfig, NONE};
    use std::path::Path;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// Counts the batches made and panics at one step.
    struct Fragile {
        made: AtomicU64,
        fails_at: u64,
    }

    impl Fragile {
        fn new(fails_at: u64) -> Arc<Self> {
            Arc::new(Self { made: AtomicU64::new(0), fails_at })
        }
    }

    impl Task for Fragile {
        fn kind(&self) -> &'static str {
            "fragile"
        }
        fn vocab_size(&self) -> usize {
            1
        }
        fn seq_len(&self) -> usize {
            1
        }
        fn metric(&self) -> Metric {
            Metric::Accuracy
        }
        fn tags(&self) -> &[String] {
            &[]
        }
        fn train_batch(&self, _: u64, step: u64, rows: usize) -> Batch {
            assert!(step != self.fails_at, "no data at {step}");
            self.made.fetch_add(1, Ordering::SeqCst);
            let numbers = vec![NONE; rows];
            let (targets, tags, distances) = (numbers.clone(), numbers.clone(), numbers);
            Batch { rows, len: 1, tokens: vec![0; rows], targets, hint_targets: None, tags, distances }
        }
        fn eval_sequences(&self) -> usize {
            0
        }
        fn eval_batch(&self, _: usize, _: usize) -> Batch {
            self.train_batch(0, 0, 0)
        }
        fn describe(&self) -> String {
            String::new()
        }
    }

    #[test]
    fn gives_the_batches_of_the_task_in_order() {
        let task: Arc<dyn Task> = Arc::new(MqarConfig::default().build(Path::new("")).unwrap());
        let prepared: Vec<(u64, Batch)> =
            Prefetch::start(task.clone(), 9, 4, 5..25).unwrap().map(Result::unwrap).collect();
        let direct: Vec<(u64, Batch)> = (5..25).map(|step| (step, task.train_batch(9, step, 4))).collect();
        assert!(prepared == direct);
    }

    #[test]
    fn an_empty_range_ends_at_once() {
        assert!(Prefetch::start(Fragile::new(0), 0, 1, 5..5).unwrap().next().is_none());
    }

    #[test]
    fn a_panic_becomes_an_error_after_the_batches_before_it() {
        let mut batches = Prefetch::start(Fragile::new(7), 0, 1, 5..100).unwrap();
        assert_eq!(batches.next().unwrap().unwrap().0, 5);
        assert_eq!(batches.next().unwrap().unwrap().0, 6);
        let error = batches.next().unwrap().unwrap_err().to_string();
        assert_eq!(error, "the task failed while preparing the batch of step 7: no data at 7");
        assert!(batches.next().is_none());
    }

    #[test]
    fn stays_within_its_depth_and_stops_when_dropped() {
        let task = Fragile::new(u64::MAX);
        let mut batches = Prefetch::start(task.clone(), 0, 1, 0..u64::MAX).unwrap();
        for _ in 0..10 {
            batches.next().unwrap().unwrap();
        }
        // Dropping waits for the thread: were it still running, it would hold the task.
        drop(batches);
        assert_eq!(Arc::strong_count(&task), 1);
        assert!(task.made.load(Ordering::SeqCst) <= 10 + DEPTH as u64 + 1);
    }

    #[test]
    fn a_panic_ahead_of_the_reader_does_not_break_dropping() {
        let task = Fragile::new(1);
        let mut batches = Prefetch::start(task.clone(), 0, 1, 0..10).unwrap();
        batches.next().unwrap().unwrap();
        drop(batches);
        assert_eq!(Arc::strong_count(&task), 1);
    }
}
