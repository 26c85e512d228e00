//! Reading a long prompt: whole, and with its end alone going through the decoder (bounded replay).

use std::time::Instant;

use burn::tensor::Device;
use csa2_infer::{Limit, Options, Session, decoder, exact_replay};
use csa2_model::config::ModelConfig;
use csa2_model::init::initialize;
use csa2_model::model::Model;
use csa2_train::random;

use super::{Bench, BenchError, Ratio, Results, Row, Subject, timing};
use crate::say::say;

/// Ten layers, the upper five of them the decoder; everything but the mix is that of `csa2 bench decode`.
const LAYERS: &str = "swa (full@2 reuse)*2 full@1+pool reuse reindex reuse*2";

fn config() -> Result<ModelConfig, BenchError> {
    let base = include_str!("prefill.toml");
    let text = format!("layers = '{LAYERS}'\npool = {{ blocks = 256, block_size = 8 }}\n{base}");
    toml::from_str(&text).map_err(|error| BenchError::Decode(error.to_string()))
}

/// One way to read a prompt: the tokens that go through the decoder, all where that is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Way(Option<usize>);

/// Prompts of these lengths, each read whole, with a replay of the window, and with one that is exact. Matrix products are not timed
/// beside them: what counts is one way against the other, read in turn.
///
/// # Errors
/// When the caches would not fit the memory, or the device fails.
pub fn run(bench: &Bench, lengths: &[u64]) -> Result<Results, BenchError> {
    let config = config()?;
    let layers = decoder(&config)?;
    let (window, exact) = (config.window, exact_replay(&config, &layers));
    let model = Model::new(&config, None, &bench.device).map_err(|error| BenchError::Decode(error.to_string()))?;
    let model = initialize(model, 0.0, |path| random::stream(0, random::INITIALISATION, path.len() as u64));
    let mut results = Results::default();
    for &length in lengths {
        let length = length as usize;
        let ways = [Way(None), Way(Some(window)), Way(Some(exact))];
        let mut seconds = [const { Vec::new() }; 3];
        for turn in 0..bench.effort.repetitions.clamp(1, 3) {
            for (way, seconds) in ways.iter().zip(&mut seconds) {
                say(&format!("prefill of {length} tokens, {}, turn {}", way.name(), turn + 1));
                seconds.push(way.read(&model, &config, length, &bench.device)?);
            }
        }
        let whole = timing::median(&seconds[0]);
        for (way, seconds) in ways.iter().zip(&seconds) {
            results.rows.push(way.row(bench, &config, length, seconds)?);
        }
        for (way, seconds) in ways.iter().zip(&seconds).skip(1) {
            results.ratios.push(Ratio {
                what: format!(
                    "prefill of {length} tokens through `{LAYERS}`: time whole over time with a {}, in turn",
                    way.name()
                ),
                value: whole / timing::median(seconds),
            });
        }
    }
    Ok(results)
}

impl Way {
    fn name(self) -> String {
        self.0.map_or("whole".into(), |replay| format!("replay of {replay}"))
    }

    /// Seconds to read a prompt of `length` tokens.
    fn read(self, model: &Model, config: &ModelConfig, length: usize, device: &Device) -> Result<f64, BenchError> {
        let options = Options { memory: Limit::Free, ..Options::new(length) };
        let mut session = Session::new(model, config, 1, options)?;
        let prompt: Vec<i32> = (0..length).map(|at| (at * at % 251) as i32).collect();
        device.sync()?;
        let start = Instant::now();
        let logits = match self.0 {
            None => session.prefill(&[prompt])?,
            Some(replay) => session.extend_bounded(&[(0, &prompt)], replay)?.logits,
        };
        let _data = logits.try_into_data()?;
        Ok(start.elapsed().as_secs_f64())
    }

    fn row(self, bench: &Bench, config: &ModelConfig, length: usize, seconds: &[f64]) -> Result<Row, BenchError> {
        let subject = Subject {
            operator: "prefill",
            case: self.name(),
            pass: "prompt",
            sizes: vec![("seq", length), ("layers", config.layers.len()), ("d-model", config.d_model)],
            work: None,
            tokens: Some(length),
        };
        bench.timed(subject, seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::Effort;

    #[test]
    fn half_of_the_layers_are_the_decoder() {
        let config = config().unwrap();
        assert_eq!(decoder(&config).unwrap(), 5..10);
        let bench = Bench::new(Device::flex(), Effort { repetitions: 1, seconds: 0.0 });
        let results = run(&bench, &[300]).unwrap();
        let names: Vec<&str> = results.rows.iter().map(|row| row.subject.case.as_str()).collect();
        assert_eq!(names, ["whole", "replay of 128", "replay of 636"]);
        assert!(results.rows.iter().all(|row| row.tokens().unwrap() > 0.0));
        assert_eq!(results.ratios.len(), 2);
    }
}
