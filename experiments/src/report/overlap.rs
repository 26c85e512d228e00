//! The report of what selections have in common.

use std::path::Path;

use super::charts::{HeatCell, HeatMap, heat_map};
use super::format::html as escape;
use super::html::{document, fact_list, header};
use super::terminal::{cells, new_table, print, title_cells};
use super::{ReportError, format};
use crate::overlap::{Common, Mean, Overlap, Pair, Selecting};
use crate::results::write_atomic;

/// Over which queries.
type Of = fn(&Pair) -> Option<Common>;

/// What is shown.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Which {
    /// Intersection over union.
    Union,
    /// Attention of one layer on the selection of another.
    Attention,
}

impl Which {
    fn of(self, common: &Common) -> Mean {
        match self {
            Self::Union => common.iou,
            Self::Attention => common.mass,
        }
    }

    /// What rows and columns are.
    fn axes(self) -> [String; 2] {
        match self {
            Self::Union => ["selection of".to_owned(), "and of".to_owned()],
            Self::Attention => ["attention of".to_owned(), "on the selection of".to_owned()],
        }
    }
}

const ALL: Of = |pair| pair.all;
const CHOOSING: Of = |pair| pair.choosing;

/// Writes `report.html` into `out`.
///
/// # Errors
/// When the file cannot be written.
pub fn write(out: &Path, overlap: &Overlap) -> Result<(), ReportError> {
    Ok(write_atomic(&out.join("report.html"), page(overlap).as_bytes())?)
}

/// The matrices for a terminal of `width` columns: over the queries that choose, or over all where none does.
pub fn table(overlap: &Overlap, width: u16) -> String {
    let (of, queries) = if any(overlap, CHOOSING) {
        (CHOOSING, "queries that see more entries than are selected")
    } else {
        (ALL, "all queries that see an entry; none sees more than are selected")
    };
    let mut out = format!("{} · {}\n", format::terminal(&overlap.mix), format::terminal(&overlap.task));
    out += &format!("{} of {} sequences; {queries}\n", overlap.sequences, overlap.evaluation_sequences);
    for (title, which) in [
        ("Intersection over union of what two layers select", Which::Union),
        ("Attention of the row's layer that lies on what the column's layer selects", Which::Attention),
    ] {
        let names = overlap.layers.iter().map(Selecting::name);
        let titles: Vec<String> = std::iter::once("layer".to_owned()).chain(names).collect();
        let mut table = new_table();
        table.set_header(title_cells(&titles, 1));
        for (i, layer) in overlap.layers.iter().enumerate() {
            let value = |j: usize| of(overlap.pair(i, j)).map(|common| which.of(&common));
            let row = (0..overlap.layers.len()).map(|j| value(j).map_or("–".into(), text));
            table.add_row(cells(&std::iter::once(layer.name()).chain(row).collect::<Vec<_>>(), 1));
        }
        out += &format!("\n{title}\n{}", print(table, width));
    }
    out += "± is half the 95% interval of the mean over sequences; in brackets what selections at random would give.\n";
    if mixed(overlap) {
        out += "Layers of different ratios are compared by the tokens that their entries stand for.\n";
    }
    out
}

fn text(mean: Mean) -> String {
    let spread = mean.half_width.map_or(String::new(), |half| format!(" ± {half:.3}"));
    let chance = mean.chance.map_or(String::new(), |chance| format!(" ({chance:.3})"));
    format!("{:.3}{spread}{chance}", mean.mean)
}

/// Whether any pair has queries of that kind.
fn any(overlap: &Overlap, of: Of) -> bool {
    overlap.pairs.iter().any(|pair| of(pair).is_some())
}

/// Whether layers have different ratios.
fn mixed(overlap: &Overlap) -> bool {
    overlap.pairs.iter().any(|pair| !pair.same_ratio)
}

/// The pairs of different layers, each once, with their intersection over union, the largest first.
fn nearest(overlap: &Overlap, of: Of) -> Vec<(String, String, Mean)> {
    let count = overlap.layers.len();
    let places = (0..count).flat_map(|i| (i + 1..count).map(move |j| (i, j)));
    let mut pairs: Vec<_> = places
        .filter_map(|(i, j)| {
            let mean = of(overlap.pair(i, j))?.iou;
            Some((overlap.layers[i].name(), overlap.layers[j].name(), mean))
        })
        .collect();
    pairs.sort_by(|one, other| other.2.mean.total_cmp(&one.2.mean));
    pairs
}

fn answer(overlap: &Overlap) -> Vec<String> {
    let of = if any(overlap, CHOOSING) { CHOOSING } else { ALL };
    let pairs = nearest(overlap, of);
    let mut out = Vec::new();
    let said = |(one, other, mean): &(String, String, Mean)| {
        let chance = mean.chance.map_or(String::new(), |chance| format!("; at random {chance:.3}"));
        format!("layers {one} and {other} ({:.3}{chance})", mean.mean)
    };
    match (pairs.first(), pairs.last()) {
        (Some(most), Some(least)) if pairs.len() > 1 => {
            out.push(format!("Selections are most alike in {}, least in {}.", said(most), said(least)));
        }
        (Some(only), _) => out.push(format!("The two selecting layers: {}.", said(only))),
        _ => out.push("Only one layer selects; there is nothing to compare it with.".into()),
    }
    for (i, layer) in overlap.layers.iter().enumerate() {
        let on = |j: usize| of(overlap.pair(i, j)).map(|common| common.mass.mean);
        let others = (0..overlap.layers.len()).filter(|&j| j != i);
        let best = others.filter_map(|j| Some((overlap.layers[j].name(), on(j)?)));
        let best = best.max_by(|one, other| one.1.total_cmp(&other.1));
        if let (Some(own), Some((name, other))) = (on(i), best) {
            out.push(format!(
                "Layer {}: {own:.3} of its attention lies on its own selection, at most {other:.3} on another's (layer {name}).",
                layer.name()
            ));
        }
    }
    out
}

fn page(overlap: &Overlap) -> String {
    let title = format!("What the layers of {} select", overlap.mix);
    let mut body = header("overlap of selections", &title);
    body += "<div class=\"answer\">\n<h3>Answer</h3>\n<ul>\n";
    for sentence in answer(overlap) {
        body += &format!("<li>{}</li>\n", escape(&sentence));
    }
    body += "</ul>\n</div>\n";
    let pool = overlap.pool.map_or("none".into(), |pool| format!("{} blocks of {}", pool.blocks, pool.block_size));
    body += &fact_list(&[
        ("Task", overlap.task.clone()),
        ("Run", format!("{}, step {}", overlap.run, overlap.run_step)),
        ("Top-K", overlap.topk.to_string()),
        ("Candidate pool", pool),
        ("Sequences", format!("{} of {}, seed {}", overlap.sequences, overlap.evaluation_sequences, overlap.seed)),
    ]);
    body += "<h3>Matrices</h3>\n<div class=\"figures\">\n";
    for (of, queries) in [
        (CHOOSING, "over queries that see more entries than are selected"),
        (ALL, "over all queries that see an entry"),
    ] {
        if any(overlap, of) {
            body += &map(overlap, of, Which::Union, &format!("Intersection over union, {queries}"));
            body += &map(overlap, of, Which::Attention, &format!("Attention on selections, {queries}"));
        }
    }
    body += "</div>\n<h3>Method</h3>\n<dl class=\"method\">\n";
    for (term, text) in method(overlap) {
        body += &format!("<dt>{term}</dt><dd>{}</dd>\n", escape(&text));
    }
    body += "</dl>\n<h3>How to reproduce</h3>\n";
    body += &fact_list(&[
        ("Command", overlap.command.clone()),
        ("csa2 version", overlap.version.clone()),
        ("Backend", overlap.backend.clone()),
        ("Weights", overlap.weights_sha256.chars().take(16).collect()),
    ]);
    document(&title, &body)
}

fn map(overlap: &Overlap, of: Of, which: Which, title: &str) -> String {
    let count = overlap.layers.len();
    let cell = |i: usize, j: usize| {
        let pair = overlap.pair(i, j);
        let mean = which.of(&of(pair)?);
        // A selection has all in common with itself, whatever chance would do.
        let chance = mean.chance.filter(|_| which == Which::Attention || i != j);
        let note = chance.map_or(String::new(), |chance| format!("random {chance:.3}"));
        let note = if pair.same_ratio { note } else { format!("{note} *") };
        Some(HeatCell { shade: mean.mean, text: format!("{:.3}", mean.mean), note })
    };
    let heat = HeatMap {
        title: title.to_owned(),
        rows: overlap.layers.iter().map(Selecting::name).collect(),
        columns: overlap.layers.iter().map(Selecting::name).collect(),
        axes: which.axes(),
        cells: (0..count).map(|i| (0..count).map(|j| cell(i, j)).collect()).collect(),
    };
    let queries = (0..count * count).find_map(|place| of(&overlap.pairs[place])).map_or(0, |common| common.queries);
    let spread = overlap.pairs.iter().filter_map(|pair| of(pair).and_then(|common| which.of(&common).half_width));
    let widest = spread.fold(0.0, f64::max);
    let mut caption = format!(
        "Means over {} sequences of {}; half of the widest 95% interval is {widest:.3}. In small type what selections at random \
         would give.",
        overlap.sequences,
        format::plural(queries, "query").replace("querys", "queries"),
    );
    if mixed(overlap) {
        caption +=
            " * The two layers have different ratios and are compared by the tokens that their entries stand for.";
    }
    format!(
        "<figure>\n<h4>{}</h4>\n<div class=\"drawings\"><div class=\"drawing\"><div class=\"scroll\">{}</div></div></div>\n\
         <figcaption>{}</figcaption>\n</figure>\n",
        escape(title),
        heat_map(&heat),
        escape(&caption)
    )
}

fn method(overlap: &Overlap) -> Vec<(&'static str, String)> {
    vec![
        (
            "Selection",
            format!(
                "Of every query the {} entries that the layer's indexer scores highest, inside its candidate pool where it \
                 searches in one. Only full and reindex layers select; a reuse layer reads the selection of the nearest below it.",
                overlap.topk
            ),
        ),
        (
            "Intersection over union",
            "Tokens that both selections stand for over tokens that either stands for, per query, then the mean. Between layers of \
             one ratio that is the same as counting entries. An entry of ratio m stands for m tokens, so between layers of \
             different ratios the share cannot reach 1."
                .into(),
        ),
        (
            "Attention",
            "The row's layer attends with its own query all visible entries of the content that it reads, beside its window and \
             its sink. Shown is the share of that weight, over heads, that lies on the entries that the column's layer selects; an \
             entry of which only some tokens are selected counts in part."
                .into(),
        ),
        (
            "At random",
            "The same mean for selections of as many visible entries drawn at random: for the union both selections (only between \
             layers of one ratio), for attention the column's."
                .into(),
        ),
        (
            "Interval",
            "95% of the mean over sequences, by Student's t: it tells the spread between sequences of one run, not between runs."
                .into(),
        ),
    ]
}
