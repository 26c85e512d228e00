//! The matrix of an ablation whose weights were measured in several models: a row for each variant, a column for each model.

use std::collections::BTreeMap;

use super::analysis::Analysis;
use super::blocks::table_head;
use super::format;
use crate::ablation::TRAINED;
use crate::stats::{self, Estimate};

/// What every variant reaches in every model.
pub struct Matrix {
    /// The models: first the one that was trained, then the evaluations in the order of the configuration.
    pub columns: Vec<String>,
    /// Name of a variant, and one cell a column; none where there is no result.
    pub rows: Vec<(String, Vec<Option<Estimate>>)>,
}

impl Matrix {
    /// The matrix of an ablation; none where nothing was measured but what was trained. Rows stand in the configuration's order.
    pub fn new(analysis: &Analysis) -> Option<Self> {
        let record = &analysis.ablation.record;
        if record.evaluations.is_empty() {
            return None;
        }
        let columns: Vec<String> = std::iter::once(TRAINED.to_string()).chain(record.evaluations.clone()).collect();
        let metric = &record.metric.name;
        let rows = analysis.ablation.variants.iter().map(|variant| {
            let summaries = || variant.runs.iter().filter_map(|run| run.summary());
            let cell = |column: &String| {
                let of = |values: &BTreeMap<String, f64>| values.get(metric).copied().filter(|value| value.is_finite());
                let values: Vec<f64> = summaries()
                    .filter_map(|summary| match column.as_str() {
                        TRAINED => of(&summary.final_values),
                        other => of(summary.evaluations.get(other)?),
                    })
                    .collect();
                stats::estimate(&values).ok()
            };
            (variant.record.name.clone(), columns.iter().map(cell).collect())
        });
        Some(Self { rows: rows.collect(), columns })
    }

    /// Every cell in words.
    fn text(cell: Option<&Estimate>) -> String {
        cell.map_or("–".into(), |estimate| format::estimate(estimate, format::value))
    }

    /// Titles and rows of text.
    pub fn cells(&self) -> (Vec<String>, Vec<Vec<String>>) {
        let titles = std::iter::once("variant".to_string()).chain(self.columns.clone()).collect();
        let rows = self.rows.iter().map(|(name, cells)| {
            std::iter::once(name.clone()).chain(cells.iter().map(|cell| Self::text(cell.as_ref()))).collect()
        });
        (titles, rows.collect())
    }

    /// As a part of `report.html`.
    pub fn html(&self) -> String {
        let (titles, rows) = self.cells();
        let mut out = table_head(&titles, 1);
        for row in rows {
            let cell = |(place, text): (usize, &String)| {
                let class = if place == 0 { "" } else { " class=\"number\"" };
                format!("<td{class}>{}</td>", format::html(text))
            };
            out.push_str(&format!("<tr>{}</tr>\n", row.iter().enumerate().map(cell).collect::<String>()));
        }
        out.push_str("</tbody>\n</table>\n</div>\n");
        out.push_str(
            "<p class=\"quiet\">The same weights, measured in the model that they were trained in and in others. ± is half the \
             95% interval of the mean over seeds.</p>\n",
        );
        out
    }

    /// As `matrix.csv`: one line a cell, with unrounded numbers.
    pub fn csv(&self) -> String {
        let mut out = String::from("variant,model,mean,interval_95_half_width,seeds\n");
        for (name, cells) in &self.rows {
            for (column, cell) in self.columns.iter().zip(cells) {
                let number = |value: Option<f64>| value.map_or(String::new(), |value| value.to_string());
                let fields = [
                    format::csv(name),
                    format::csv(column),
                    number(cell.map(|cell| cell.mean)),
                    number(cell.and_then(|cell| cell.half_width)),
                    cell.map_or(0, |cell| cell.n).to_string(),
                ];
                out.push_str(&(fields.join(",") + "\n"));
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::RunState;
    use crate::report::testing::{Fake, ablation};

    #[test]
    fn cells_are_means_over_seeds_in_the_order_of_the_configuration() {
        let mut ablation = ablation(&[Fake::new("base", 1.0, &[0.5, 0.7]), Fake::new("post", 1.0, &[0.9])]);
        assert!(Matrix::new(&Analysis::new(&ablation)).is_none());
        ablation.record.evaluations = vec!["wide".into(), "narrow".into()];
        for (at, run) in ablation.variants[0].runs.iter_mut().enumerate() {
            let RunState::Finished(summary) = &mut run.state else { panic!("finished") };
            let values = BTreeMap::from([("accuracy".to_string(), 0.2 + 0.2 * at as f64)]);
            summary.evaluations.insert("narrow".into(), values);
        }
        let matrix = Matrix::new(&Analysis::new(&ablation)).unwrap();
        assert_eq!(matrix.columns, ["as trained", "wide", "narrow"]);
        let mean = |row: usize, column: usize| matrix.rows[row].1[column].map(|cell| (cell.mean * 1e6).round() / 1e6);
        assert_eq!([mean(0, 0), mean(0, 1), mean(0, 2)], [Some(0.6), None, Some(0.3)]);
        assert_eq!([mean(1, 0), mean(1, 2)], [Some(0.9), None]);
        assert_eq!(matrix.csv().lines().nth(2), Some("base,wide,,,0"));
        assert_eq!(matrix.csv().lines().count(), 7);
        assert!(matrix.html().contains("<td class=\"number\">–</td>"));
    }
}
