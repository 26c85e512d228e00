//! The figures of the report, drawn as SVG.
//!
//! [`all`] lists them. `plot` is the drawing board, `axis` the axes, `labels` finds room for names, and `curves` brings the
//! measurements of several seeds together; each of the other files draws one figure.

pub mod axis;
mod cost;
mod curves;
mod decode;
mod evaluation;
mod heat;
mod labels;
mod layers;
mod learning;
pub mod plot;
mod pools;
mod probe;
mod rows;
mod tags;
mod trade;

use super::analysis::Analysis;
use super::{ReportError, Variant};

pub use curves::dense_tokens;
pub use decode::{decode, decode_styles};
pub use evaluation::{evaluation, evaluation_styles};
pub use heat::{HeatCell, HeatMap, heat_map};
pub use plot::{Marker, Style, Styles};
pub use probe::{DIFFERENT, probe, probe_styles};
pub use rows::joint;
pub use trade::{trade_offs, trade_styles};

/// Width and height of a chart in pixels.
const SIZE: (i32, i32) = (620, 380);

/// Characters of a name that are shown beside a point, and to the left of a row.
const NAME: usize = 32;
const ROW_NAME: usize = 40;

/// Title of a drawing of all variants where another enlarges a part of it.
const ALL: &str = "All variants";

/// One figure of the report.
pub struct Figure {
    /// What it shows.
    pub title: String,
    /// Its drawings, each with a title where there are several.
    pub panels: Vec<(Option<String>, String)>,
    /// How to read it.
    pub caption: String,
    /// The variants in it, best first, where their names do not stand in the drawing; with the rank where that does.
    pub legend: Vec<(Option<usize>, String)>,
    /// How its drawings are set.
    pub layout: Layout,
}

/// How the drawings of a figure are set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// One below the other.
    Stacked,
    /// Two side by side over the width of the page; a single one as [`Layout::Stacked`].
    Pair,
    /// Many small ones over the width of the page.
    Many,
}

/// The figures of one ablation; those that it has no data for are left out.
pub fn all(analysis: &Analysis, styles: &Styles) -> Result<Vec<Figure>, ReportError> {
    let mut figures = Vec::new();
    figures.extend(learning::learning(analysis, styles)?);
    figures.extend(rows::metric_by_variant(analysis, styles)?);
    figures.extend(cost::quality_by_cost(analysis, styles)?);
    figures.extend(pools::by_pool(analysis, styles)?);
    for group in curves::tag_groups(analysis) {
        figures.push(tags::by_tag(analysis, &group, styles)?);
    }
    figures.extend(layers::index_kl(analysis)?);
    Ok(figures)
}

/// The panels of a figure: the `whole`, and where there is one an enlarged part of it with its title, beside which the
/// whole needs the title `name`.
fn panels(name: &str, whole: String, part: Option<(String, String)>) -> Vec<(Option<String>, String)> {
    match part {
        None => vec![(None, whole)],
        Some((part_name, part)) => vec![(Some(name.to_owned()), whole), (Some(part_name), part)],
    }
}

/// Title of the enlarged part.
fn best_title(close: usize) -> String {
    format!("Enlarged: the {close} best")
}

/// The label of the metric with its direction.
fn metric_title(analysis: &Analysis) -> String {
    let metric = analysis.metric();
    format!("{} ({} is better)", metric.label, if metric.higher_is_better { "higher" } else { "lower" })
}

/// The look of a variant.
fn style_of(styles: &Styles, variant: &Variant) -> Style {
    styles.get(&variant.record.name).copied().unwrap_or(Style::of(0))
}
