//! `csa2 bench`.

mod decode;
mod flags;
mod prefill;

use std::process::ExitCode;

use serde_json::json;

use self::decode::{DecodeFlags, MemoryFlags};
use self::flags::{GeometryFlags, KlFlags, QueryFlags, ReadoutFlags, SelectFlags, StepFlags};
use self::prefill::PrefillFlags;
use super::Failure;
use crate::backend::Backend;
use crate::bench::readout::Measured;
use crate::bench::{
    Bench, Effort, Results, Shape, chosen, decode::memory, geometry, kl, peak, query, readout, render_json,
    render_text, select, step,
};
use crate::say::say;

/// Arguments of `csa2 bench`.
#[derive(Debug, clap::Args)]
#[command(
    disable_help_subcommand = true,
    after_help = "Examples:\n  csa2 bench\n  csa2 bench readout --case small --threads 1\n  csa2 bench select --seq 1 --entries 65536 --json\n  csa2 bench step --config configs/quickstart.toml --variant \"full + reuse\"\n  csa2 bench decode --context 4K..512K --out decode-cost\n\nEvery rate of an operator or a step stands beside that of the backend's own f32 matrix product in the same run. Figures to keep need a release\nbuild and a machine that does nothing else."
)]
pub struct Args {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    operator: Option<Operator>,
}

#[derive(Debug, clap::Args)]
struct Common {
    /// Backend to compute on (see `csa2 backends`)
    #[arg(long, global = true, display_order = 100, value_enum, default_value_t)]
    backend: Backend,
    /// Threads (default: processor cores)
    #[arg(long, global = true, display_order = 101, value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// Two repetitions: shows that everything runs, not how fast
    #[arg(long, global = true, display_order = 102)]
    quick: bool,
    /// Print one JSON document instead of a table
    #[arg(long, global = true, display_order = 103)]
    json: bool,
}

/// What is measured; everything but `decode` and `prefill` where it is left out.
#[derive(Debug, clap::Subcommand)]
enum Operator {
    /// Attention over window and selected entries, forward and backward
    #[command(
        after_help = "Cases: small (S 1024, d 128), wide (S 2048, d 512, forward alone), long (S 8192, peak of memory alone).\n\nExamples:\n  csa2 bench readout\n  csa2 bench readout --case small --topk 128 --window 0"
    )]
    Readout(ReadoutFlags),
    /// Index scores and Top-K
    #[command(
        after_help = "Cases: whole (4096 queries, no pool), pool-8k and pool-64k (one query that searches a pool of 256 blocks of 8), pool-32k and pool-512k (the same with 2048 blocks).\n\nExamples:\n  csa2 bench select\n  csa2 bench select --case pool-32k --entries 131072"
    )]
    Select(SelectFlags),
    /// The indexer's loss, forward and backward
    #[command(
        after_help = "Cases: small (S 1024, K 64), long (S 4096, K 256).\n\nExamples:\n  csa2 bench kl\n  csa2 bench kl --topk 512"
    )]
    Kl(KlFlags),
    /// One decoding query of one layer: select and read-out against N entries
    #[command(
        after_help = "Cases: 4k, 16k, 64k, 256k (all entries searched), 4k-pool to 256k-pool (a pool of 2048 blocks of 8).\nOne layer's two operators, its projections left out; `csa2 bench decode` has whole models.\n\nExamples:\n  csa2 bench query\n  csa2 bench query --case 64k --case 64k-pool"
    )]
    Query(QueryFlags),
    /// Decoding with a whole model: time, bytes and scored entries of a token at growing context
    #[command(
        after_help = "Ten layers of the released pattern with random weights and packed caches that are filled with made-up vectors, the same with every\nlayer full, and windows without a limit (dense). Beside them: scoring and copying bandwidth, prompts, memory of a process of its\nown, and caches on disk. 4K..512K takes some minutes and 1 GiB. With --config the model of a file takes the place of the released layout.\n\nExamples:\n  csa2 bench decode\n  csa2 bench decode --config configs/quickstart.toml --variant \"full + reuse\" --context 4K..64K\n  csa2 bench decode --context 16K,512K --tokens 200\n  csa2 bench decode --context 4K..512K --out decode-cost"
    )]
    Decode(DecodeFlags),
    /// Reading a long prompt: whole, and with bounded replay
    #[command(
        after_help = "Ten layers with random weights and packed caches, five of them in the decoder, which sees the end of the prompt alone: a replay of the\nwindow, and one that is exact.\n\nExamples:\n  csa2 bench prefill\n  csa2 bench prefill --context 8K,32K"
    )]
    Prefill(PrefillFlags),
    /// A whole training step
    #[command(
        after_help = "Without --config: the quickstart's model (`swa full reuse*2`) on 32 sequences of 48 tokens.\n\nExamples:\n  csa2 bench step\n  csa2 bench step --config configs/quickstart.toml --variant \"all full\""
    )]
    Step(StepFlags),
    /// Geometry of the read-out: queries that reach targets, membership of a hull
    #[command(
        after_help = "Cases: reach, membership (100 points, n 640, d 512).\nPlain Rust in f64 on one thread, whatever the backend; every answer is checked.\n\nExamples:\n  csa2 bench geometry\n  csa2 bench geometry --case reach --entries 200 --dim 64"
    )]
    Geometry(GeometryFlags),
    /// The process that measures memory
    #[command(name = peak::COMMAND, hide = true)]
    Peak(ReadoutFlags),
    /// The process that measures the memory of decoding
    #[command(name = memory::COMMAND, hide = true)]
    DecodeMemory(MemoryFlags),
}

/// Measures and prints.
///
/// # Errors
/// When a shape cannot be, or the device fails.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let common = &args.common;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = common.threads.map_or(cores, usize::from);
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .build()
        .map_err(|error| format!("cannot start {threads} threads: {error}; lower --threads"))?;
    // A failure is told as text: what it is made of need not be able to leave the thread.
    let text = pool.install(|| text(args, threads).map_err(|error| error.to_string()))?;
    let Some(text) = text else { return Ok(ExitCode::from(super::INTERRUPTED)) };
    super::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// What is printed; none where it was interrupted.
fn text(args: &Args, threads: usize) -> Result<Option<String>, Failure> {
    let common = &args.common;
    let device = common.backend.device()?;
    if let Some(Operator::Peak(flags)) = &args.operator {
        let [(_, shape)] = &chosen(&flags.cases, |shape| flags.change(shape))?[..] else {
            return Err("the process that measures memory takes one shape".into());
        };
        return Ok(Some(peak::document(shape, &device, common.backend == Backend::Flex)?.to_string()));
    }
    if let Some(Operator::DecodeMemory(flags)) = &args.operator {
        return decode::memory(flags, common).map(Some);
    }
    if cfg!(debug_assertions) {
        say("not a release build: these figures say nothing about speed");
    }
    if let Some(Operator::Decode(flags)) = &args.operator {
        return decode::text(flags, common, threads);
    }
    let bench = Bench::new(device, if common.quick { Effort::QUICK } else { Effort::FULL });
    let results = measure(args, &bench, threads)?;
    if !common.json {
        return Ok(Some(render_text(&results, super::terminal_width())));
    }
    let run = json!({
        "program": concat!("csa2 ", env!("CARGO_PKG_VERSION")),
        "backend": common.backend.name(),
        "device": common.backend.hardware()?,
        "threads": threads,
        "quick": common.quick,
        "release": !cfg!(debug_assertions),
    });
    Ok(Some(format!("{}\n", serde_json::to_string_pretty(&render_json(&run, &results))?)))
}

/// Everything, or the operator asked for.
fn measure(args: &Args, bench: &Bench, threads: usize) -> Result<Results, Failure> {
    let everything = [
        Operator::Readout(ReadoutFlags::default()),
        Operator::Select(SelectFlags::default()),
        Operator::Kl(KlFlags::default()),
        Operator::Query(QueryFlags::default()),
        Operator::Step(StepFlags::default()),
        Operator::Geometry(GeometryFlags::default()),
    ];
    let backend = args.common.backend;
    let mut results = Results::default();
    for operator in args.operator.as_ref().map_or(&everything[..], std::slice::from_ref) {
        match operator {
            Operator::Readout(flags) | Operator::Peak(flags) => {
                for (case, shape) in held(backend, &flags.cases, |shape| flags.change(shape))? {
                    if shape.measured == Measured::Memory {
                        results.peaks.push(peak::measure(&case, &shape, &passed_on(&args.common, threads))?);
                    } else {
                        results.rows.extend(readout::run(bench, &case, &shape)?);
                    }
                }
            }
            Operator::Select(flags) => {
                let cases = held(backend, &flags.cases, |shape| flags.change(shape))?;
                for (case, shape) in &cases {
                    results.rows.push(select::run(bench, case, shape)?);
                }
                results.ratios.extend(select::growth(bench, &cases)?);
            }
            Operator::Kl(flags) => {
                for (case, shape) in held(backend, &flags.cases, |shape| flags.change(shape))? {
                    results.rows.extend(kl::run(bench, &case, &shape)?);
                }
            }
            Operator::Query(flags) => {
                for (case, shape) in held(backend, &flags.cases, |shape| flags.change(shape))? {
                    results.rows.push(query::run(bench, &case, &shape)?);
                }
            }
            Operator::Prefill(flags) => {
                let found = flags.measure(backend, bench)?;
                results.rows.extend(found.rows);
                results.ratios.extend(found.ratios);
            }
            // Measured otherwise, before it comes to this.
            Operator::Decode(_) | Operator::DecodeMemory(_) => {}
            Operator::Geometry(flags) => {
                for (case, shape) in chosen(&flags.cases, |shape| flags.change(shape))? {
                    results.rows.push(geometry::run(bench, &case, &shape)?);
                }
            }
            Operator::Step(flags) => {
                for step in step::chosen(flags.config.as_deref(), &flags.variants)? {
                    for (_, channels) in step.run.model.vectors() {
                        backend.holds(&format!("variant {:?}", step.name), channels)?;
                    }
                    results.rows.push(step::run(bench, &step)?);
                }
            }
        }
    }
    Ok(results)
}

/// The cases asked for, if the backend's operators can hold their vectors.
fn held<S: Shape>(backend: Backend, names: &[String], change: impl Fn(S) -> S) -> Result<Vec<(String, S)>, Failure> {
    let cases = chosen(names, change)?;
    for (case, shape) in &cases {
        for (flag, value) in shape.sizes().into_iter().filter(|(flag, _)| ["dim", "index-dim"].contains(flag)) {
            backend.holds(&format!("case {case}: --{flag} {value}"), value)?;
        }
    }
    Ok(cases)
}

/// The flags that the process which measures memory shares with this one.
fn passed_on(common: &Common, threads: usize) -> [String; 2] {
    [format!("--backend={}", common.backend.name()), format!("--threads={threads}")]
}
