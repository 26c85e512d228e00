//! What comes of every target: sums by sequence, over all targets, by tag, by position and by distance.

use csa2_train::evaluate::Outcome;
use csa2_train::tasks::{Batch, Metric, NONE, Task};

use super::record::{Mean, Measure, Part, TagPart};
use crate::stats;

/// Groups of neighbouring positions at most.
const POSITIONS: usize = 32;

/// Groups of neighbouring distances at most.
const DISTANCES: usize = 12;

/// Sums over the targets of one sequence that belong together.
#[derive(Debug, Clone, Copy, Default)]
struct Cell {
    targets: f64,
    loss: f64,
    correct: f64,
}

/// Groups of neighbouring numbers, each with a cell a sequence.
#[derive(Debug)]
struct Groups {
    first: usize,
    last: usize,
    width: usize,
    cells: Vec<Vec<Cell>>,
}

impl Groups {
    /// At most `most` groups of equal width from the least of the numbers to the largest; none without numbers.
    fn over(numbers: impl Iterator<Item = usize>, most: usize) -> Option<Self> {
        let range = numbers.fold(None, |range: Option<(usize, usize)>, number| {
            Some(range.map_or((number, number), |(low, high)| (low.min(number), high.max(number))))
        });
        let (first, last) = range?;
        let width = (last + 1 - first).div_ceil(most);
        Some(Self { first, last, width, cells: vec![Vec::new(); (last - first) / width + 1] })
    }

    fn cell(&mut self, number: usize, sequence: usize) -> &mut Cell {
        cell(&mut self.cells[(number - self.first) / self.width], sequence)
    }

    fn parts(&self, metric: Metric) -> Vec<Part> {
        let parts = self.cells.iter().enumerate().filter_map(|(group, cells)| {
            let from = self.first + group * self.width;
            Some(Part { from, to: self.last.min(from + self.width - 1), measure: measure(cells, metric)? })
        });
        parts.collect()
    }
}

fn cell(cells: &mut Vec<Cell>, sequence: usize) -> &mut Cell {
    if cells.len() <= sequence {
        cells.resize(sequence + 1, Cell::default());
    }
    &mut cells[sequence]
}

/// The mean difference of two measurements of the same sequences, sequence by sequence (see [`Sums::by_sequence`]).
pub fn difference(here: &[(f64, f64)], there: &[(f64, f64)]) -> Option<Mean> {
    let differences: Vec<(f64, f64)> = here.iter().zip(there).map(|(here, there)| (here.0 - there.0, here.1)).collect();
    let estimate = stats::pooled(&differences).ok()?;
    Some(Mean { mean: estimate.mean, half_width: estimate.half_width })
}

impl Cell {
    /// The sum of the metric.
    fn sum(&self, metric: Metric) -> f64 {
        match metric {
            Metric::Accuracy => self.correct,
            Metric::BitsPerByte => self.loss / std::f64::consts::LN_2,
        }
    }

    fn add(&mut self, outcome: &Outcome) {
        self.targets += 1.0;
        self.loss += outcome.loss;
        self.correct += f64::from(u8::from(outcome.correct));
    }
}

/// Means over the targets of all sequences; none where there is no target.
fn measure(cells: &[Cell], metric: Metric) -> Option<Measure> {
    let mean = |of: &dyn Fn(&Cell) -> f64| {
        let sums: Vec<(f64, f64)> = cells.iter().map(|cell| (of(cell), cell.targets)).collect();
        let estimate = stats::pooled(&sums).ok()?;
        Some(Mean { mean: estimate.mean, half_width: estimate.half_width })
    };
    Some(Measure {
        targets: cells.iter().map(|cell| cell.targets).sum::<f64>() as usize,
        sequences: cells.iter().filter(|cell| cell.targets > 0.0).count(),
        loss: mean(&|cell| cell.loss)?,
        metric: mean(&|cell| cell.sum(metric))?,
    })
}

/// The sums of one measurement.
#[derive(Debug)]
pub struct Sums {
    metric: Metric,
    sequences: usize,
    all: Vec<Cell>,
    tags: Vec<(String, Vec<Cell>)>,
    positions: Option<Groups>,
    distances: Option<Groups>,
}

impl Sums {
    /// Nothing measured yet of a task's `batches`, which are looked through for the positions and distances that occur.
    pub fn new(task: &dyn Task, batches: impl Iterator<Item = Batch>) -> Self {
        let (mut positions, mut distances) = (Vec::new(), Vec::new());
        for batch in batches {
            positions.resize(batch.len, false);
            distances.resize(batch.len, false);
            for (place, _) in batch.targets.iter().enumerate().filter(|(_, target)| **target != NONE) {
                positions[place % batch.len] = true;
                if let Ok(distance) = usize::try_from(batch.distances[place]) {
                    distances[distance] = true;
                }
            }
        }
        let occurring =
            |marks: Vec<bool>| marks.into_iter().enumerate().filter(|(_, mark)| *mark).map(|(number, _)| number);
        Self {
            metric: task.metric(),
            sequences: 0,
            all: Vec::new(),
            tags: task.tags().iter().map(|name| (name.clone(), Vec::new())).collect(),
            positions: Groups::over(occurring(positions), POSITIONS),
            distances: Groups::over(occurring(distances), DISTANCES),
        }
    }

    /// Adds what a model answered to one of the batches.
    pub fn add(&mut self, batch: &Batch, outcomes: &[Outcome]) {
        for outcome in outcomes {
            let (sequence, position) = (self.sequences + outcome.place / batch.len, outcome.place % batch.len);
            cell(&mut self.all, sequence).add(outcome);
            if let Ok(tag) = usize::try_from(batch.tags[outcome.place]) {
                cell(&mut self.tags[tag].1, sequence).add(outcome);
            }
            if let Some(positions) = &mut self.positions {
                positions.cell(position, sequence).add(outcome);
            }
            if let (Some(distances), Ok(distance)) =
                (&mut self.distances, usize::try_from(batch.distances[outcome.place]))
            {
                distances.cell(distance, sequence).add(outcome);
            }
        }
        self.sequences += batch.rows;
    }

    /// Sequences so far.
    pub fn sequences(&self) -> usize {
        self.sequences
    }

    /// Over all targets.
    pub fn all(&self) -> Option<Measure> {
        measure(&self.all, self.metric)
    }

    /// The metric of every sequence, as the sum over its targets and their number: those of the tag by which the task is judged, or all.
    pub fn by_sequence(&self, tag: Option<&str>) -> Vec<(f64, f64)> {
        let cells = match tag {
            None => Some(&self.all),
            Some(tag) => self.tags.iter().find(|(name, _)| name == tag).map(|(_, cells)| cells),
        };
        cells.into_iter().flatten().map(|cell| (cell.sum(self.metric), cell.targets)).collect()
    }

    /// By the task's tags; those without a target are left out.
    pub fn tags(&self) -> Vec<TagPart> {
        let parts = self.tags.iter();
        parts
            .filter_map(|(name, cells)| Some(TagPart { name: name.clone(), measure: measure(cells, self.metric)? }))
            .collect()
    }

    /// By position in the sequence.
    pub fn positions(&self) -> Vec<Part> {
        self.positions.as_ref().map_or(Vec::new(), |groups| groups.parts(self.metric))
    }

    /// By distance from the answer to the question; empty where the task has none.
    pub fn distances(&self) -> Vec<Part> {
        self.distances.as_ref().map_or(Vec::new(), |groups| groups.parts(self.metric))
    }
}
