//! The matrix of an ablation whose weights were measured in several models: a row for each variant, a column for each model.

use std::collections::BTreeMap;

use super::analysis::Analysis;
use super::blocks::table_head;
use super::{Variant, format};
use crate::ablation::TRAINED;
use crate::results::{PoolRecord, SearchRecord};
use crate::stats::{self, Estimate};

/// What the mark of a cell means.
pub const FOREIGN: &str =
    "† These weights were trained with another candidate pool, or without one, than they are measured with here.";

/// What one variant reaches in one model.
#[derive(Debug, Clone, PartialEq)]
pub struct Cell {
    /// Over seeds.
    pub estimate: Estimate,
    /// The folders of the runs that it is made of, relative to the ablation's.
    pub runs: Vec<String>,
    /// Whether the weights were trained with another pool.
    pub foreign: bool,
}

/// What every variant reaches in every model.
pub struct Matrix {
    /// What is measured, for people.
    pub label: String,
    /// The models: first the one that was trained, then the evaluations in the order of the configuration.
    pub columns: Vec<String>,
    /// Name of a variant, and one cell a column; none where there is no result.
    pub rows: Vec<(String, Vec<Option<Cell>>)>,
}

/// Whether a variant's layers search in another pool in one of the models than in the one that was trained.
fn foreign(variant: &Variant, model: &str) -> bool {
    let search = |model: &str| variant.record.searches.get(model);
    search(model).is_some_and(|here| search(TRAINED).is_none_or(|trained| trained.pool != here.pool))
}

impl Matrix {
    /// All matrices: that of the metric, and where that counts one kind of positions alone, those of the other kinds. Empty where
    /// nothing was measured but what was trained. Rows stand in the configuration's order.
    pub fn all(analysis: &Analysis) -> Vec<Self> {
        let record = &analysis.ablation.record;
        if record.evaluations.is_empty() {
            return Vec::new();
        }
        let metric = &record.metric;
        let mut matrices = vec![Self::of(analysis, &metric.name, &metric.label)];
        if let Some((name, tag)) = metric.name.split_once('/') {
            let summaries =
                analysis.ablation.variants.iter().flat_map(|variant| &variant.runs).filter_map(|r| r.summary());
            let keys = summaries.flat_map(|summary| summary.final_values.keys());
            let others: std::collections::BTreeSet<&str> = keys
                .filter_map(|key| key.split_once('/'))
                .filter(|(n, t)| *n == name && *t != tag)
                .map(|(_, t)| t)
                .collect();
            let label = |other: &str| metric.label.replace(tag, other);
            matrices.extend(others.iter().map(|tag| Self::of(analysis, &format!("{name}/{tag}"), &label(tag))));
        }
        matrices
    }

    fn of(analysis: &Analysis, metric: &str, label: &str) -> Self {
        let record = &analysis.ablation.record;
        let columns: Vec<String> = std::iter::once(TRAINED.to_string()).chain(record.evaluations.clone()).collect();
        let rows = analysis.ablation.variants.iter().map(|variant| {
            let cell = |column: &String| {
                let of = |values: &BTreeMap<String, f64>| values.get(metric).copied().filter(|value| value.is_finite());
                let found = variant.runs.iter().filter_map(|run| run.summary()).filter_map(|summary| {
                    let value = match column.as_str() {
                        TRAINED => of(&summary.final_values),
                        other => of(summary.evaluations.get(other)?),
                    };
                    Some((value?, format!("{}/seed-{}", variant.record.name, summary.seed)))
                });
                let (values, runs): (Vec<f64>, Vec<String>) = found.unzip();
                let foreign = foreign(variant, column);
                Some(Cell { estimate: stats::estimate(&values).ok()?, runs, foreign })
            };
            (variant.record.name.clone(), columns.iter().map(cell).collect())
        });
        Self { label: label.to_string(), rows: rows.collect(), columns }
    }

    /// Whether any cell is marked.
    pub fn has_foreign(&self) -> bool {
        self.rows.iter().flat_map(|(_, cells)| cells.iter().flatten()).any(|cell| cell.foreign)
    }

    /// Every cell in words.
    fn text(cell: Option<&Cell>) -> String {
        cell.map_or("–".into(), |cell| {
            let mark = if cell.foreign { " †" } else { "" };
            format!("{}{mark}", format::estimate(&cell.estimate, format::value))
        })
    }

    /// Titles and rows of text.
    pub fn cells(&self) -> (Vec<String>, Vec<Vec<String>>) {
        let titles = std::iter::once("variant".to_string()).chain(self.columns.clone()).collect();
        let rows = self.rows.iter().map(|(name, cells)| {
            std::iter::once(name.clone()).chain(cells.iter().map(|cell| Self::text(cell.as_ref()))).collect()
        });
        (titles, rows.collect())
    }
}

/// In words, for every model whose pool some weights were trained with and others not: what each of them reaches in it, and whether the
/// intervals of the first two touch.
pub fn answer(analysis: &Analysis) -> Vec<String> {
    let higher = analysis.ablation.record.metric.higher_is_better;
    let matrices = Matrix::all(analysis);
    let Some(matrix) = matrices.first() else { return Vec::new() };
    let mut out = Vec::new();
    for (place, column) in matrix.columns.iter().enumerate().skip(1) {
        let mut cells: Vec<(&str, &Cell)> =
            matrix.rows.iter().filter_map(|(name, cells)| Some((name.as_str(), cells[place].as_ref()?))).collect();
        let mixed = cells.iter().any(|(_, cell)| cell.foreign) && cells.iter().any(|(_, cell)| !cell.foreign);
        if !mixed {
            continue;
        }
        let at = |variant: &str, place: usize| {
            matrix.rows.iter().find(|(name, _)| name == variant).and_then(|(_, cells)| cells[place].as_ref())
        };
        let order = |a: f64, b: f64| if higher { b.total_cmp(&a) } else { a.total_cmp(&b) };
        cells.sort_by(|(_, one), (_, other)| order(one.estimate.mean, other.estimate.mean));
        let told: Vec<String> =
            cells.iter().map(|(name, cell)| format!("{name} {}", Matrix::text(Some(*cell)))).collect();
        let apart = match (cells[0].1.estimate.interval(), cells[1].1.estimate.interval()) {
            (Some(one), Some(other)) if one.0 > other.1 || other.0 > one.1 => {
                "; the intervals of the first two do not touch"
            }
            (Some(_), Some(_)) => "; the intervals of the first two touch",
            _ => "",
        };
        // What the baseline loses here, and how much of that the best weights that were trained for it bring back.
        let baseline = &analysis.ablation.record.baseline;
        let native = cells.iter().find(|(_, cell)| !cell.foreign).map(|(_, cell)| cell.estimate.mean);
        let lost = match (at(baseline, 0), at(baseline, place), native) {
            (Some(own), Some(here), Some(native)) if higher && here.foreign && clearly_above(own, here) => {
                let (own, here) = (own.estimate.mean, here.estimate.mean);
                format!(
                    "; {baseline} loses {} here, of which the weights trained for it bring back {:.0}%",
                    format::value(own - here),
                    100.0 * (native - here) / (own - here)
                )
            }
            _ => String::new(),
        };
        out.push(format!("In the model \"{column}\": {}{apart}{lost}.", told.join(", ")));
    }
    out
}

/// Whether one mean is above another with room between their intervals: of a difference that is not, no share is told.
fn clearly_above(one: &Cell, other: &Cell) -> bool {
    let bounds = one.estimate.interval().zip(other.estimate.interval());
    bounds.is_some_and(|((low, _), (_, high))| low > high)
}

/// Every model that layers search in, once: its name and what the search costs. Where variants differ, each with its name.
fn costs<'a>(analysis: &Analysis<'a>) -> Vec<(String, &'a SearchRecord)> {
    let record = &analysis.ablation.record;
    let mut rows: Vec<(String, &SearchRecord)> = Vec::new();
    for column in std::iter::once(&TRAINED.to_string()).chain(&record.evaluations) {
        for variant in &analysis.ablation.variants {
            let Some(search) = variant.record.searches.get(column) else { continue };
            let same = |other: &SearchRecord| {
                other.pool == search.pool
                    && other.scored_entries_at_context == search.scored_entries_at_context
                    && other.scored_entries.total_cmp(&search.scored_entries).is_eq()
            };
            if rows.iter().any(|(_, other)| same(other)) {
                continue;
            }
            rows.push((pool_name(search.pool), search));
        }
    }
    // From the tightest pool to none.
    rows.sort_by_key(|(_, search)| (search.scored_entries_at_context, search.pool));
    rows
}

/// `4x2`, or that there is none.
pub fn pool_name(pool: Option<PoolRecord>) -> String {
    pool.map_or("no pool".into(), |pool| format!("{}x{}", pool.blocks, pool.block_size))
}

/// Titles and rows of what the search for addresses costs in each model; none where no layer searches.
pub fn searches(analysis: &Analysis) -> Option<(Vec<String>, Vec<Vec<String>>)> {
    let rows = costs(analysis);
    let context = analysis.ablation.record.variants.first()?.cost.decode_context;
    let titles = vec![
        "pool".to_string(),
        "entries scored, the task's sequences".to_string(),
        format!("entries scored at {}", format::context(context)),
        format!("time at {}", format::context(context)),
    ];
    let row = |(name, search): &(String, &SearchRecord)| {
        let time = search.seconds_at_context.map_or("–".into(), |seconds| format!("{:.1} µs", 1e6 * seconds));
        vec![name.clone(), format!("{:.1}", search.scored_entries), search.scored_entries_at_context.to_string(), time]
    };
    (!rows.is_empty()).then(|| (titles, rows.iter().map(row).collect()))
}

/// How the table of [`searches`] is to be read.
pub fn searches_key(analysis: &Analysis) -> String {
    let context = analysis.ablation.record.variants.first().map_or(0, |variant| variant.cost.decode_context);
    format!(
        "What a query's search costs its reindex layers: entries scored, on average over the task's sequences and with {} tokens of \
         context, and the time that took there (median, random keys, this machine)",
        format::context(context)
    )
}

/// As a part of `report.html`; empty where nothing was measured but what was trained.
pub fn html(analysis: &Analysis) -> String {
    let matrices = Matrix::all(analysis);
    if matrices.is_empty() {
        return String::new();
    }
    let mut out = String::from("<h3>The same weights in other models</h3>\n");
    for matrix in &matrices {
        out.push_str(&format!("<h4>{}</h4>\n", format::html(&format::heading(&matrix.label))));
        out.push_str(&html_table(matrix.cells()));
    }
    out.push_str(
        "<p class=\"quiet\">The same weights, measured in the model that they were trained in and in others. ± is half the \
         95% interval of the mean over seeds.",
    );
    if matrices.iter().any(Matrix::has_foreign) {
        out.push_str(&format!(" {FOREIGN}"));
    }
    out.push_str("</p>\n");
    if let Some(searches) = searches(analysis) {
        out.push_str("<h4>What the search costs</h4>\n");
        out.push_str(&html_table(searches));
        out.push_str(&format!("<p class=\"quiet\">{}.</p>\n", format::html(&searches_key(analysis))));
    }
    out
}

/// A table as HTML, its first column text, the others numbers.
pub fn html_table((titles, rows): (Vec<String>, Vec<Vec<String>>)) -> String {
    let mut out = table_head(&titles, 1);
    for row in rows {
        let cell = |(place, text): (usize, &String)| {
            let class = if place == 0 { "" } else { " class=\"number\"" };
            format!("<td{class}>{}</td>", format::html(text))
        };
        out.push_str(&format!("<tr>{}</tr>\n", row.iter().enumerate().map(cell).collect::<String>()));
    }
    out.push_str("</tbody>\n</table>\n</div>\n");
    out
}

/// As `matrix.csv`: one line a cell, with unrounded numbers and the runs that it is made of.
pub fn csv(matrices: &[Matrix]) -> String {
    let mut out =
        String::from("metric,variant,model,mean,interval_95_half_width,seeds,trained_with_another_pool,runs\n");
    for matrix in matrices {
        for (name, cells) in &matrix.rows {
            for (column, cell) in matrix.columns.iter().zip(cells) {
                let number = |value: Option<f64>| value.map_or(String::new(), |value| value.to_string());
                let fields = [
                    format::csv(&matrix.label),
                    format::csv(name),
                    format::csv(column),
                    number(cell.as_ref().map(|cell| cell.estimate.mean)),
                    number(cell.as_ref().and_then(|cell| cell.estimate.half_width)),
                    cell.as_ref().map_or(0, |cell| cell.estimate.n).to_string(),
                    cell.as_ref().map_or(String::new(), |cell| cell.foreign.to_string()),
                    format::csv(&cell.as_ref().map_or(String::new(), |cell| cell.runs.join("; "))),
                ];
                out.push_str(&(fields.join(",") + "\n"));
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::testing::{Fake, ablation};
    use crate::report::{Ablation, RunState};

    fn measured(name: &str) -> Ablation {
        spread(name, 0.1)
    }

    /// Two seeds so far above and below their mean: 0.6 as trained, 0.3 in the model "narrow".
    fn spread(name: &str, by: f64) -> Ablation {
        let mut ablation = ablation(&[Fake::new("base", 1.0, &[0.6 - by, 0.6 + by]), Fake::new("post", 1.0, &[0.9])]);
        assert!(Matrix::all(&Analysis::new(&ablation)).is_empty());
        ablation.record.evaluations = vec!["wide".into(), "narrow".into()];
        for (at, run) in ablation.variants[0].runs.iter_mut().enumerate() {
            let RunState::Finished(summary) = &mut run.state else { panic!("finished") };
            let values = BTreeMap::from([(name.to_string(), 0.3 - by + 2.0 * by * at as f64)]);
            summary.evaluations.insert("narrow".into(), values);
        }
        ablation
    }

    #[test]
    fn cells_are_means_over_seeds_in_the_order_of_the_configuration() {
        let ablation = measured("accuracy");
        let matrices = Matrix::all(&Analysis::new(&ablation));
        let matrix = &matrices[0];
        assert_eq!((matrices.len(), &matrix.columns[..]), (1, &["as trained", "wide", "narrow"].map(String::from)[..]));
        let mean = |row: usize, column: usize| {
            matrix.rows[row].1[column].as_ref().map(|cell| (cell.estimate.mean * 1e6).round() / 1e6)
        };
        assert_eq!([mean(0, 0), mean(0, 1), mean(0, 2)], [Some(0.6), None, Some(0.3)]);
        assert_eq!([mean(1, 0), mean(1, 2)], [Some(0.9), None]);
        let csv = csv(&matrices);
        assert_eq!(csv.lines().nth(2), Some("accuracy,base,wide,,,0,,"));
        assert!(csv.lines().nth(3).unwrap().ends_with(",2,false,base/seed-1; base/seed-2"), "{csv}");
        assert_eq!(csv.lines().count(), 7);
        assert!(html(&Analysis::new(&ablation)).contains("<td class=\"number\">–</td>"));
    }

    #[test]
    fn other_kinds_of_positions_have_matrices_of_their_own() {
        let mut ablation = measured("accuracy/distance 16-31");
        ablation.record.metric.name = "accuracy/distance 8-15".into();
        ablation.record.metric.label = "accuracy, distance 8-15".into();
        let matrices = Matrix::all(&Analysis::new(&ablation));
        let labels: Vec<&str> = matrices.iter().map(|matrix| matrix.label.as_str()).collect();
        assert_eq!(labels, ["accuracy, distance 8-15", "accuracy, distance 16-31"]);
        assert!((matrices[1].rows[0].1[2].as_ref().unwrap().estimate.mean - 0.3).abs() < 1e-9);
        assert_eq!(matrices[0].rows[0].1[2], None);
    }

    #[test]
    fn another_pool_than_in_training_is_marked_and_its_cost_told() {
        // Of a loss whose interval is as large no share is told.
        for (by, told) in
            [(0.1, ""), (0.001, "; base loses 0.3000 here, of which the weights trained for it bring back 100%")]
        {
            another_pool(spread("accuracy", by), told);
        }
    }

    fn another_pool(mut ablation: Ablation, share: &str) {
        let search = |blocks: Option<u64>, scored: u64, seconds: Option<f64>| SearchRecord {
            pool: blocks.map(|blocks| PoolRecord { blocks, block_size: 2 }),
            scored_entries: scored as f64 / 2.0,
            scored_entries_at_context: scored,
            seconds_at_context: seconds,
        };
        ablation.variants[0].record.searches = BTreeMap::from([
            (TRAINED.to_string(), search(None, 2048, Some(1e-3))),
            ("wide".to_string(), search(None, 2048, Some(1e-3))),
            ("narrow".to_string(), search(Some(4), 8, None)),
        ]);
        let analysis = Analysis::new(&ablation);
        let matrices = Matrix::all(&analysis);
        let foreign: Vec<bool> = matrices[0].rows[0].1.iter().flatten().map(|cell| cell.foreign).collect();
        assert_eq!(foreign, [false, true]);
        assert_eq!(answer(&analysis).len(), 0, "nobody was trained with that pool");
        assert!(matrices[0].cells().1[0][3].ends_with(" †"), "{:?}", matrices[0].cells().1);
        let (titles, rows) = searches(&analysis).unwrap();
        assert_eq!(titles[2], "entries scored at 4K");
        assert_eq!(
            rows,
            [["4x2", "4.0", "8", "–"], ["no pool", "1024.0", "2048", "1000.0 µs"]]
                .map(|row| row.map(String::from).to_vec())
        );
        assert!(html(&analysis).contains("† These weights"));
        // Another variant is trained with the narrow pool.
        let RunState::Finished(summary) = &mut ablation.variants[1].runs[0].state else { panic!("finished") };
        summary.evaluations.insert("narrow".into(), BTreeMap::from([("accuracy".to_string(), 0.6)]));
        ablation.variants[1].record.searches =
            BTreeMap::from([TRAINED, "narrow"].map(|name| (name.to_string(), search(Some(4), 8, None))));
        let told = answer(&Analysis::new(&ablation));
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(told[0].starts_with("In the model \"narrow\": post 0.6"), "{told:?}");
        assert!(told[0].contains(", base 0.3"), "{told:?}");
        // 0.6 as trained, 0.3 here, and the post-trained weights are back at 0.6.
        assert!(told[0].ends_with(&format!("†{share}.")), "{told:?}");
    }
}
