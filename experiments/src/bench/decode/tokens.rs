//! How long a token takes, at every context.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::Instant;

use csa2_infer::Session;
use serde::Serialize;

use super::mixes::{Mix, numbers};
use super::{Options, Times, stopped};
use crate::bench::BenchError;
use crate::report::context_label;
use crate::say::say;

/// Tokens that are decoded at one context before the next one's turn, and those before them that are not counted: they bring
/// the processor's caches into the state of this context.
const TURN: usize = 10;
const WARM_UP: usize = 2;

/// Tokens that are made up at a time.
const STEP: usize = 512;

/// One mix at all contexts.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Measured {
    /// By which the mix is known.
    pub key: &'static str,
    /// Its name for people.
    pub name: String,
    /// Its layers.
    pub layers: String,
    /// Its contexts, ascending.
    pub rows: Vec<Row>,
}

/// One context.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Tokens that are stored before the first one is decoded.
    pub context: u64,
    /// Tokens that have been timed.
    pub repetitions: usize,
    /// Seconds of a token, head and reading of the logits included.
    pub token: Times,
    /// Seconds of all layers of a mode, per token.
    pub modes: BTreeMap<&'static str, Times>,
    /// Bytes that the caches hold at this context.
    pub bytes: u64,
    /// Memory behind these bytes.
    pub allocated: u64,
    /// Index entries that the first token scores, over all layers.
    pub scored: u64,
}

impl Measured {
    /// The row of a context.
    pub fn at(&self, context: u64) -> Option<&Row> {
        self.rows.iter().find(|row| row.context == context)
    }
}

/// Tokens that a session needs room for behind the longest context.
pub fn behind(options: &Options) -> usize {
    1 + options.tokens.div_ceil(TURN) * (TURN + WARM_UP)
}

/// Appends made-up tokens until there are `length`.
///
/// # Errors
/// When the session refuses, or it is time to stop.
pub fn make_up(session: &mut Session, length: u64, options: &Options) -> Result<(), BenchError> {
    let mut next = numbers();
    while (session.lengths()[0] as u64) < length {
        stopped(options)?;
        let step = (length as usize - session.lengths()[0]).min(STEP);
        session.make_up(step, &mut next)?;
    }
    Ok(())
}

/// A context whose tokens are being timed.
struct Timed {
    session: Session,
    row: Row,
    tokens: Vec<f64>,
    modes: BTreeMap<&'static str, Vec<f64>>,
}

/// Measures a mix at all contexts; also gives the session of the longest one.
///
/// # Errors
/// When the session refuses, or it is time to stop.
pub fn measure(mix: &Mix, options: &Options) -> Result<(Measured, Session), BenchError> {
    let mut session = mix.session(options.contexts.longest() as usize + behind(options), &options.device)?;
    let mut timed = Vec::new();
    for &context in options.contexts.lengths() {
        say(&format!("{}: caches of {} tokens", mix.name, context_label(context)));
        make_up(&mut session, context, options)?;
        // Shorter contexts share their memory with the longest.
        timed.push(Timed::new(session.fork(), context)?);
    }
    drop(session);
    // In turns, so that a machine that is busy for a while is so for every context.
    for done in (0..options.tokens).step_by(TURN) {
        say(&format!("{}: tokens {} to {} at every context", mix.name, done + 1, (done + TURN).min(options.tokens)));
        for context in &mut timed {
            for at in 0..WARM_UP + TURN.min(options.tokens - done) {
                stopped(options)?;
                context.decode(mix, at >= WARM_UP)?;
            }
        }
    }
    let Some(last) = timed.last().map(|context| context.session.fork()) else {
        return Err(BenchError::Decode("no context to measure at".into()));
    };
    let rows = timed.into_iter().map(Timed::finish).collect();
    Ok((Measured { key: mix.key, name: mix.name.clone(), layers: mix.layers.clone(), rows }, last))
}

impl Timed {
    /// Decodes one token to count what it scores.
    fn new(mut session: Session, context: u64) -> Result<Self, BenchError> {
        let (bytes, allocated) = (session.bytes().total(), session.caches().allocated());
        let before: u64 = session.scored().iter().sum();
        session.decode(&[0])?;
        let scored = session.scored().iter().sum::<u64>() - before;
        let token = Times::default();
        let row = Row { context, repetitions: 0, token, modes: BTreeMap::new(), bytes, allocated, scored };
        Ok(Self { session, row, tokens: Vec::new(), modes: BTreeMap::new() })
    }

    fn decode(&mut self, mix: &Mix, counts: bool) -> Result<(), BenchError> {
        let token = self.tokens.len() % mix.vocabulary();
        let start = Instant::now();
        let (logits, layers) = self.session.decode_timed(&[token as i32])?;
        black_box(logits.try_into_data()?);
        let whole = start.elapsed().as_secs_f64();
        if counts {
            self.tokens.push(whole);
            let mut sums: BTreeMap<&'static str, f64> = BTreeMap::new();
            for (layer, time) in mix.config.layers.layers().iter().zip(layers) {
                *sums.entry(layer.mode.name()).or_default() += time.as_secs_f64();
            }
            for (mode, sum) in sums {
                self.modes.entry(mode).or_default().push(sum);
            }
        }
        Ok(())
    }

    fn finish(self) -> Row {
        let modes = self.modes.iter().map(|(mode, seconds)| (*mode, Times::of(seconds))).collect();
        Row { repetitions: self.tokens.len(), token: Times::of(&self.tokens), modes, ..self.row }
    }
}

#[cfg(test)]
mod tests {
    use csa2_model::cost::Cost;

    use super::super::{mixes, testing};
    use super::*;

    #[test]
    fn bytes_and_scored_entries_are_those_that_the_configuration_costs() {
        // Longer than windows, Top-K and the pool's 2048 entries; the odd one leaves an incomplete group.
        let options = testing::options("200,2501,5000", 3);
        for mix in mixes::all(None).unwrap() {
            let (measured, session) = measure(&mix, &options).unwrap();
            assert_eq!(session.lengths(), [5000 + 1 + WARM_UP + 3]);
            let cost = Cost::of(&mix.config).unwrap();
            for (row, &context) in measured.rows.iter().zip(options.contexts.lengths()) {
                assert_eq!((row.context, row.repetitions), (context, 3));
                // A group that is not complete is kept as f32 inputs, one for each layer that waits for it.
                let layers = mix.config.layers.layers();
                let waiting = layers.iter().filter(|layer| layer.mode.name() == "full" && layer.ratio == 2).count();
                let waiting = waiting as u64 * (context % 2) * mix.config.d_model as u64 * 4;
                let each: Vec<(u64, u64)> = layers
                    .iter()
                    .map(|layer| match layer.mode.name() {
                        "full" => (106, context / layer.ratio as u64),
                        "dense" => (132, context),
                        _ => (0, 0),
                    })
                    .collect();
                let stored: u64 = each.iter().map(|(bytes, count)| bytes * count).sum();
                let windows = cost.window_bytes() as u64;
                assert_eq!(row.bytes, stored + windows + waiting, "{} at {context}", mix.name);
                if context % 2 == 0 {
                    let per_token = cost.bytes_per_token().total.to_f64() * context as f64;
                    assert!((per_token - stored as f64).abs() < 0.5, "{} at {context}", mix.name);
                }
                assert!(row.allocated >= row.bytes);
                // The newest of a pool's blocks of 8 may not be full yet.
                let pool = mix.key == mixes::RELEASED && context + 1 > 2048;
                let missing = if pool { (context + 1).next_multiple_of(8) - (context + 1) } else { 0 };
                let scored = cost.scored_entries(context + 1) - missing as f64;
                assert!((row.scored as f64 - scored).abs() < 0.5, "{} at {context}: {} {scored}", mix.name, row.scored);
                let sum: f64 = row.modes.values().map(|times| times.quartile).sum();
                assert!(row.token.quartile > 0.0 && sum > 0.0 && row.token.quartile <= row.token.median);
            }
        }
    }
}
