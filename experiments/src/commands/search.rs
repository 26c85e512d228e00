//! `csa2 search`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use super::Failure;
use crate::backend::Backend;
use crate::report;
use crate::say::say;
use crate::search::{Options, Search, SearchError, SearchFile};

/// Arguments of `csa2 search`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  csa2 search configs/search.toml --from \"runs/quickstart/all full/seed-0\"\n\nNothing is trained: layers keep the run's weights of what they still have. The command may be stopped at any time (Ctrl-C, or\neven killed): run it again and it goes on where it was."
)]
pub struct Args {
    /// What mixes are measured on, and when to stop
    config: PathBuf,
    /// Folder of the run whose layers are looked at: one seed of a variant, or an imported model
    #[arg(long, value_name = "RUN")]
    from: PathBuf,
    /// Folder for the results (default: runs/<name of the search>)
    #[arg(long)]
    out: Option<PathBuf>,
    /// Threads; the same number gives the same results, bit for bit
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: u16,
    /// Backend to compute on (see `csa2 backends`)
    #[arg(long, value_enum, default_value_t)]
    backend: Backend,
    /// Print the results as one JSON document instead of a table
    #[arg(long)]
    json: bool,
}

/// Searches and writes the report.
///
/// # Errors
/// When configuration or run are wrong, or files or device fail.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let file = SearchFile::load(&args.config)?;
    let out = args.out.clone().unwrap_or_else(|| Path::new("runs").join(&file.search.name));
    let options = Options {
        out: out.clone(),
        threads: usize::from(args.threads),
        backend: args.backend.name(),
        device: args.backend.device()?,
        command: format!("csa2 search {} --from {}", args.config.display(), super::quoted(&args.from)),
    };
    let base = args.config.parent().unwrap_or(Path::new("."));
    let search = Search::new(file, base, &args.from, options)?;
    super::holds(args.backend, search.model_config())?;
    let stop = super::stop_on_interrupt("stopping: the measurement that runs is finished first")?;
    let found = match search.run(&stop) {
        Err(SearchError::Interrupted) => {
            say("interrupted; what was measured is kept, run the same command again to go on");
            return Ok(ExitCode::from(super::INTERRUPTED));
        }
        ended => ended?,
    };
    report::write_search(&out, &found)?;
    if args.json {
        super::print(&format!("{}\n", serde_json::to_string_pretty(&found)?))?;
    } else {
        super::print(&report::search_table(&found, super::terminal_width()))?;
    }
    say(&format!("\nreport: {}", out.join("report.html").display()));
    Ok(ExitCode::SUCCESS)
}
