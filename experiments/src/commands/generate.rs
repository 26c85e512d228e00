//! `csa2 generate`.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::Instant;

use burn::tensor::Tensor;
use csa2_infer::sampling::Sampler;
use csa2_infer::{Options, Session};
use csa2_train::files;
use csa2_train::random::{self, SAMPLING};
use csa2_train::runs::Run;
use csa2_train::tasks::TaskConfig;
use serde_json::json;

use super::Failure;
use super::transfer::size;
use crate::backend::Backend;
use crate::say::say;

/// Arguments of `csa2 generate`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  csa2 generate \"runs/text/full + reuse/seed-0\" --prompt \"The kernel \" --temperature 0.8 --top-p 0.95\n  csa2 generate \"runs/quickstart/full + reuse/seed-0\" --tokens \"3 20 7 25 33 34 3\" --max-new 4\n\nThe prompt is read in passes, then every token is decoded from the caches alone, which keep vectors in the number formats of the model's\nconfiguration. A run that was trained on text reads and writes bytes; any other one token ids."
)]
pub struct Args {
    /// Folder of the run: one seed of a variant, or an imported model
    run: PathBuf,
    /// Prompt as text, for a run that was trained on text
    #[arg(long, conflicts_with_all = ["prompt_file", "tokens"])]
    prompt: Option<String>,
    /// A file with the prompt, byte for byte
    #[arg(long, value_name = "FILE", conflicts_with = "tokens")]
    prompt_file: Option<PathBuf>,
    /// Prompt as token ids, separated by spaces or commas
    #[arg(long, value_name = "IDS")]
    tokens: Option<String>,
    /// Tokens to generate at most
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..))]
    max_new: u32,
    /// Tokens of prompt and continuation together at most; the caches for as many must fit the memory
    #[arg(long, default_value_t = 1 << 16, value_parser = clap::value_parser!(u32).range(1..))]
    max_tokens: u32,
    /// 0 takes the likeliest token always
    #[arg(long, default_value_t = 0.0)]
    temperature: f64,
    /// Draw from the likeliest tokens that together have this share of the probability
    #[arg(long, default_value_t = 1.0)]
    top_p: f64,
    /// Decides what is drawn
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// End where the continuation holds this text (of a run on text), or this token id; it is not printed. May be given several times
    #[arg(long)]
    stop: Vec<String>,
    /// Backend to compute on (see `csa2 backends`)
    #[arg(long, value_enum, default_value_t)]
    backend: Backend,
    /// Print one JSON document at the end instead of the tokens as they come
    #[arg(long)]
    json: bool,
}

/// Continues a prompt.
///
/// # Errors
/// When the run cannot be read, the prompt does not fit it, the caches do not fit the memory, or the device fails.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let run = Run::open(&args.run)?;
    super::holds(args.backend, run.model_config())?;
    let text = match run.task() {
        Some(task) => matches!(task, TaskConfig::Text(_)),
        None => false,
    };
    let prompt = prompt(args, &run, text)?;
    let stops = stops(args, text, run.model_config().vocab_size)?;
    let mut sampler = Sampler::new(args.temperature, args.top_p, random::stream(args.seed, SAMPLING, 0))?;
    let wanted = prompt.len() as u64 + u64::from(args.max_new);
    if wanted > u64::from(args.max_tokens) {
        return Err(format!(
            "a prompt of {} tokens and {} new ones are more than --max-tokens {}; raise it, or ask for less",
            prompt.len(),
            args.max_new,
            args.max_tokens
        )
        .into());
    }
    let device = args.backend.device()?;
    let weights = run.weights(&device)?;
    let model = weights.model(run.model_config(), &device)?;
    let mut session = Session::new(&model, run.model_config(), 1, Options::new(args.max_tokens as usize))?;
    let stop = super::stop_on_interrupt("stopping after this token")?;

    let started = Instant::now();
    let mut logits = session.prefill(std::slice::from_ref(&prompt))?;
    let mut new: Vec<i32> = Vec::new();
    let mut printer = Printer::new(text, &stops, !args.json);
    let first = sampler.draw(&numbers(logits)?)?;
    let prefill = started.elapsed().as_secs_f64();
    let started = Instant::now();
    let mut next = first;
    let why = loop {
        new.push(next);
        if printer.take(next)? {
            break "stop";
        }
        if new.len() >= args.max_new as usize {
            break "length";
        }
        if stop.load(Ordering::Relaxed) {
            break "interrupted";
        }
        logits = session.decode(&[next])?;
        next = sampler.draw(&numbers(logits)?)?;
    };
    let seconds = started.elapsed().as_secs_f64();
    let shown = printer.finish()?;
    let bytes = session.bytes();
    // The first token comes with the prompt.
    let decoded = new.len() - 1;
    let rate = |count: usize, seconds: f64| if count == 0 { 0.0 } else { count as f64 / seconds.max(1e-9) };
    if args.json {
        let document = json!({
            "run": args.run.display().to_string(),
            "step": run.state().step,
            "layers": run.model_config().layers.to_string(),
            "prompt_tokens": prompt.len(),
            "tokens": new,
            "text": text.then(|| String::from_utf8_lossy(&shown).into_owned()),
            "ended_by": why,
            "prefill_tokens_per_second": rate(prompt.len(), prefill),
            "decode_tokens_per_second": rate(decoded, seconds),
            "cache_bytes": {
                "windows": bytes.windows, "main_kv": bytes.main_kv, "index_keys": bytes.index_keys,
                "dense": bytes.dense, "waiting": bytes.waiting, "total": bytes.total(),
                "on_device": session.caches().device_bytes(),
            },
        });
        super::print(&format!("{}\n", serde_json::to_string_pretty(&document)?))?;
        return Ok(ExitCode::SUCCESS);
    }
    super::print("\n")?;
    let on_device = match session.caches().device_bytes() {
        0 => String::new(),
        bytes => format!(", and {} on the device", size(bytes)),
    };
    say(&format!(
        "prompt: {} tokens at {:.0} tokens/s; {} new ones, ended by {why}, at {:.0} tokens/s; caches hold {} ({} of windows){on_device}",
        prompt.len(),
        rate(prompt.len(), prefill),
        new.len(),
        rate(decoded, seconds),
        size(bytes.total()),
        size(bytes.windows),
    ));
    Ok(if why == "interrupted" { ExitCode::from(super::INTERRUPTED) } else { ExitCode::SUCCESS })
}

fn numbers(logits: Tensor<2>) -> Result<Vec<f32>, Failure> {
    Ok(logits.try_into_data()?.iter().collect())
}

/// The prompt as tokens.
fn prompt(args: &Args, run: &Run, text: bool) -> Result<Vec<i32>, Failure> {
    let kind =
        run.task().map_or("nothing that is known (it was imported)".to_string(), |task| format!("`{}`", task.kind()));
    if let Some(ids) = &args.tokens {
        return token_ids(ids);
    }
    if args.prompt.is_none() && args.prompt_file.is_none() {
        return Err("no prompt: give one by --prompt, --prompt-file or --tokens".into());
    }
    if !text {
        return Err(format!(
            "{}: was trained on {kind}, whose tokens are no text; give token ids by --tokens",
            args.run.display()
        )
        .into());
    }
    let bytes = match (&args.prompt, &args.prompt_file) {
        (Some(prompt), _) => prompt.clone().into_bytes(),
        // One byte is one token: of a file that is too long, no more is read than shows it.
        (None, Some(path)) => {
            let most = u64::from(args.max_tokens.saturating_sub(args.max_new));
            let bytes = files::read_start(path, most.saturating_add(1))?;
            if bytes.len() as u64 > most {
                return Err(format!(
                    "{}: the prompt has more than the {most} tokens that --max-tokens {} leaves beside {} new ones; raise it, or ask for less",
                    path.display(),
                    args.max_tokens,
                    args.max_new
                )
                .into());
            }
            bytes
        }
        (None, None) => Vec::new(),
    };
    if bytes.is_empty() {
        return Err("the prompt is empty; it must have at least one byte".into());
    }
    Ok(bytes.into_iter().map(i32::from).collect())
}

fn token_ids(text: &str) -> Result<Vec<i32>, Failure> {
    let parts = text.split([' ', ',']).filter(|part| !part.is_empty());
    let ids = parts.map(|part| part.parse::<i32>().map_err(|_| format!("--tokens: {part:?} is no token id")));
    let ids = ids.collect::<Result<Vec<i32>, String>>()?;
    if ids.is_empty() {
        Err("--tokens: the prompt is empty; it must have at least one token id".into())
    } else {
        Ok(ids)
    }
}

/// What ends the continuation: bytes of text, or token ids as lists of one.
fn stops(args: &Args, text: bool, vocabulary: Option<usize>) -> Result<Vec<Vec<i32>>, Failure> {
    let one = |stop: &String| -> Result<Vec<i32>, Failure> {
        if stop.is_empty() {
            return Err("--stop: an empty text would end everything at once".into());
        }
        if text {
            return Ok(stop.bytes().map(i32::from).collect());
        }
        let id = stop.parse::<i32>().map_err(|_| format!("--stop {stop:?}: the run writes token ids; give one"))?;
        if let Some(vocabulary) = vocabulary.filter(|&ids| !usize::try_from(id).is_ok_and(|id| id < ids)) {
            return Err(format!("--stop {id}: no such token; ids go from 0 to {}", vocabulary - 1).into());
        }
        Ok(vec![id])
    };
    args.stop.iter().map(one).collect()
}

/// Prints tokens as they come, but holds back what may still become a stop.
struct Printer<'a> {
    text: bool,
    stops: &'a [Vec<i32>],
    aloud: bool,
    /// Tokens that are not printed yet.
    held: Vec<i32>,
    shown: Vec<u8>,
    first: bool,
}

impl<'a> Printer<'a> {
    fn new(text: bool, stops: &'a [Vec<i32>], aloud: bool) -> Self {
        Self { text, stops, aloud, held: Vec::new(), shown: Vec::new(), first: true }
    }

    /// Takes a token; true where the continuation ends with a stop, which is then dropped.
    fn take(&mut self, token: i32) -> Result<bool, Failure> {
        self.held.push(token);
        if let Some(stop) = self.stops.iter().find(|stop| self.held.ends_with(stop)) {
            let keep = self.held.len() - stop.len();
            self.held.truncate(keep);
            return Ok(true);
        }
        // The longest end of what is held that a stop begins with must wait.
        let begins =
            |count: usize| self.stops.iter().any(|stop| stop.starts_with(&self.held[self.held.len() - count..]));
        let wait = (1..=self.held.len()).rev().find(|&count| begins(count)).unwrap_or(0);
        self.print(self.held.len() - wait)?;
        Ok(false)
    }

    fn print(&mut self, count: usize) -> Result<(), Failure> {
        let tokens: Vec<i32> = self.held.drain(..count).collect();
        let mut bytes = Vec::new();
        for token in tokens {
            if self.text {
                bytes.push(token as u8);
            } else {
                let gap = if self.first { "" } else { " " };
                bytes.extend(format!("{gap}{token}").into_bytes());
            }
            self.first = false;
        }
        if self.aloud && !bytes.is_empty() {
            let mut out = std::io::stdout();
            match out.write_all(&bytes).and_then(|()| out.flush()) {
                // A reader that has gone away is no error.
                Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
                    return Err(format!("standard output: {error}").into());
                }
                _ => {}
            }
        }
        self.shown.extend(bytes);
        Ok(())
    }

    fn finish(mut self) -> Result<Vec<u8>, Failure> {
        self.print(self.held.len())?;
        Ok(self.shown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(stops: &[&str], text: &str) -> (String, bool) {
        let stops: Vec<Vec<i32>> = stops.iter().map(|stop| stop.bytes().map(i32::from).collect()).collect();
        let mut printer = Printer::new(true, &stops, false);
        let ended = text.bytes().any(|byte| printer.take(i32::from(byte)).unwrap());
        (String::from_utf8(printer.finish().unwrap()).unwrap(), ended)
    }

    #[test]
    fn a_stop_ends_the_text_and_is_not_part_of_it() {
        assert_eq!(printed(&[], "abc"), ("abc".into(), false));
        assert_eq!(printed(&["cd"], "abcdef"), ("ab".into(), true));
        // What only begins like a stop is printed.
        assert_eq!(printed(&["cde"], "abcdxcd"), ("abcdxcd".into(), false));
        assert_eq!(printed(&["aab"], "xaaab"), ("xa".into(), true));
        assert_eq!(printed(&["zz", "b"], "azb"), ("az".into(), true));
        assert_eq!(printed(&["a"], "abc"), (String::new(), true));
    }

    #[test]
    fn ids_are_numbers_with_spaces_or_commas() {
        assert_eq!(token_ids("3, 1 4").unwrap(), [3, 1, 4]);
        assert!(token_ids(" , ").unwrap_err().to_string().contains("empty"));
        assert!(token_ids("3 x").unwrap_err().to_string().contains("\"x\" is no token id"));
    }
}
