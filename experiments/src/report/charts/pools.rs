//! The metric against the size of the candidate pool: the same weights in models with pools of several sizes.

use super::axis::{Axis, metric_axis};
use super::plot::{Frame, Style, Styles, draw};
use super::rows::bar;
use super::{Figure, Layout, SIZE, panels};
use crate::report::analysis::Analysis;
use crate::report::matrix::{Cell, Matrix, pool_name};
use crate::report::{ReportError, format};
use crate::results::PoolRecord;

/// A variant and its cells, by the place of their pool on the axis.
type Line<'a> = (&'a str, Vec<(usize, &'a Cell)>);

/// One figure for each matrix whose columns differ in their pools; none where no layer searches in one.
pub fn by_pool(analysis: &Analysis, styles: &Styles) -> Result<Vec<Figure>, ReportError> {
    Matrix::all(analysis).iter().filter_map(|matrix| one(analysis, matrix, styles).transpose()).collect()
}

fn one(analysis: &Analysis, matrix: &Matrix, styles: &Styles) -> Result<Option<Figure>, ReportError> {
    let pool_of = |variant: usize, column: &str| {
        analysis.ablation.variants[variant].record.searches.get(column).map(|search| search.pool)
    };
    // From the tightest to none; pools of as many entries stand side by side.
    let key = |pool: &Option<PoolRecord>| {
        pool.map_or((u64::MAX, 0), |p| (p.blocks.saturating_mul(p.block_size), p.block_size))
    };
    let mut pools: Vec<Option<PoolRecord>> = Vec::new();
    for variant in 0..matrix.rows.len() {
        pools.extend(matrix.columns.iter().filter_map(|column| pool_of(variant, column)));
    }
    pools.sort_by_key(key);
    pools.dedup();
    if pools.len() < 2 {
        return Ok(None);
    }
    let lines: Vec<Line> = matrix
        .rows
        .iter()
        .enumerate()
        .map(|(variant, (name, cells))| {
            let mut points: Vec<(usize, &Cell)> = Vec::new();
            for (column, cell) in matrix.columns.iter().zip(cells) {
                let place = pool_of(variant, column).and_then(|pool| pools.iter().position(|other| *other == pool));
                // The model that was trained comes first; an evaluation in the same pool repeats it.
                if let (Some(place), Some(cell)) = (place, cell)
                    && !points.iter().any(|(other, _)| *other == place)
                {
                    points.push((place, cell));
                }
            }
            points.sort_by_key(|(place, _)| *place);
            (name.as_str(), points)
        })
        .collect();
    let title = format::heading(&format!("{} against the candidate pool", matrix.label));
    Ok(Some(Figure {
        panels: panels("", drawing(&title, &matrix.label, &pools, &lines, styles)?, None),
        caption: "The weights of each variant in models with pools of blocks x entries, from tight to none; hollow: a pool that they were \
                  not trained with. Mean over seeds; bars: 95% interval, with an arrow where it goes on."
            .to_owned(),
        legend: lines.iter().map(|(name, _)| (None, (*name).to_owned())).collect(),
        layout: Layout::Stacked,
        title,
    }))
}

fn drawing(
    title: &str,
    label: &str,
    pools: &[Option<PoolRecord>],
    lines: &[Line],
    styles: &Styles,
) -> Result<String, ReportError> {
    let cells = || lines.iter().flat_map(|(_, points)| points.iter().map(|(_, cell)| *cell));
    let values: Vec<f64> = cells().map(|cell| cell.estimate.mean).collect();
    let intervals: Vec<(f64, f64)> = cells().filter_map(|cell| cell.estimate.interval()).collect();
    let frame = Frame {
        title,
        size: SIZE,
        sides: (58, 18),
        x: Axis::categories(&pools.iter().map(|pool| pool_name(*pool)).collect::<Vec<_>>()),
        y: metric_axis(&values, &intervals),
        x_title: "candidate pool, blocks x entries",
        y_title: label,
    };
    draw(&frame, |canvas| {
        for (index, (name, points)) in lines.iter().enumerate().rev() {
            let style = styles.get(*name).copied().unwrap_or(Style::of(0));
            // Side by side, for their bars would hide each other.
            let shift = 0.06 * (index as f64 - (lines.len() - 1) as f64 / 2.0);
            let at = |place: usize, value: f64| canvas.at(place as f64 + shift, value);
            // Pools of as many entries are not one behind the other: nothing joins them.
            let entries = |place: usize| pools[place].map(|pool| pool.blocks.saturating_mul(pool.block_size));
            for pair in points.windows(2).filter(|pair| entries(pair[0].0) != entries(pair[1].0)) {
                let ends = pair.iter().map(|(place, cell)| at(*place, cell.estimate.mean)).collect();
                canvas.line(ends, style.colour, 2.0, style.dash)?;
            }
            for (place, cell) in points {
                if let Some((low, high)) = cell.estimate.interval() {
                    let ends = [low, high].map(|value| (at(*place, value), !canvas.holds_y(value)));
                    bar(canvas, ends[0], ends[1], style.colour)?;
                }
                canvas.marker(at(*place, cell.estimate.mean), &style, 4.5)?;
                if cell.foreign {
                    canvas.dot(at(*place, cell.estimate.mean), plotters::style::WHITE, 2.0)?;
                }
            }
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::ablation::TRAINED;
    use crate::report::RunState;
    use crate::report::testing::{Fake, ablation};
    use crate::results::SearchRecord;

    #[test]
    fn pools_stand_from_tight_to_none() {
        let mut ablation = ablation(&[Fake::new("base", 1.0, &[0.5, 0.7])]);
        assert!(by_pool(&Analysis::new(&ablation), &Styles::new()).unwrap().is_empty());
        ablation.record.evaluations = vec!["wide".into(), "narrow".into()];
        for run in &mut ablation.variants[0].runs {
            let RunState::Finished(summary) = &mut run.state else { panic!("finished") };
            for name in ["wide", "narrow"] {
                summary.evaluations.insert(name.into(), BTreeMap::from([("accuracy".to_string(), 0.3)]));
            }
        }
        let search = |pool: Option<(u64, u64)>| SearchRecord {
            pool: pool.map(|(blocks, block_size)| PoolRecord { blocks, block_size }),
            scored_entries: 1.0,
            scored_entries_at_context: 1,
            seconds_at_context: None,
        };
        ablation.variants[0].record.searches = BTreeMap::from([
            (TRAINED.to_string(), search(None)),
            ("wide".to_string(), search(Some((16, 2)))),
            ("narrow".to_string(), search(Some((4, 2)))),
        ]);
        let figures = by_pool(&Analysis::new(&ablation), &Styles::new()).unwrap();
        assert_eq!(figures.len(), 1);
        let svg = &figures[0].panels[0].1;
        let places = ["4x2", "16x2", "no pool"].map(|label| svg.find(label).unwrap());
        assert!(places.is_sorted(), "{places:?}");
    }
}
