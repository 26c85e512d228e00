//! `csa2 figure`.

use std::path::PathBuf;
use std::process::ExitCode;

use csa2_train::files::{make_folder, write_atomic};

use super::Failure;
use crate::figure::{FIGURES, Figure};

/// Arguments of `csa2 figure`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  csa2 figure\n  csa2 figure triangle --out pictures\n\nThe pictures: triangle, ellipse, tilt, collinear, interior, dimensions, gaps, rotation."
)]
pub struct Args {
    /// Which pictures (default: all)
    names: Vec<String>,
    /// Folder for the SVG files; files of these names are replaced
    #[arg(long, default_value = "figures")]
    out: PathBuf,
}

/// Draws the worked examples of the mathematics.
///
/// # Errors
/// When there is no such picture, or a file cannot be written.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let names = || FIGURES.map(|figure| figure.name).join(", ");
    if let Some(name) = args.names.iter().find(|name| !FIGURES.iter().any(|figure| figure.name == **name)) {
        return Err(format!("no picture is called {name:?}; there are {}", names()).into());
    }
    let wanted = |figure: &&Figure| args.names.is_empty() || args.names.iter().any(|name| name == figure.name);
    let mut drawn = Vec::new();
    for figure in FIGURES.iter().filter(wanted) {
        drawn.push((figure, figure.svg()?));
    }
    make_folder(&args.out)?;
    for (figure, svg) in drawn {
        let path = args.out.join(format!("{}.svg", figure.name));
        write_atomic(&path, svg.as_bytes())?;
        super::print(&format!("{}: {}\n", path.display(), figure.about))?;
    }
    Ok(ExitCode::SUCCESS)
}
