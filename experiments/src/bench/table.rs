//! Results for people.

use comfy_table::{Cell, CellAlignment, ContentArrangement, LineStyle, Table, presets};

use super::peak::Peak;
use super::{MATMUL, Results, Row, Shape, shape};

const TITLES: [&str; 8] =
    ["case", "pass", "time", "10 to 90%", "GFLOP/s", "GB/s", "matmul\nGFLOP/s", "share of\nmatmul"];

/// The table, for a terminal of `width` columns, and what does not fit into its columns as lines below it.
pub fn render(results: &Results, width: u16) -> String {
    let mut text = String::new();
    if !results.rows.is_empty() {
        let mut table = Table::new();
        table.load_style(presets::UTF8_HORIZONTAL_ONLY.row_separator(LineStyle::none()));
        table.set_header(TITLES.iter().enumerate().map(|(column, title)| cell(column, title)));
        for row in &results.rows {
            table.add_row(cells(row).iter().enumerate().map(|(column, text)| cell(column, text)));
        }
        if table.lines().any(|line| line.chars().count() > usize::from(width)) {
            table.set_content_arrangement(ContentArrangement::Dynamic).set_width(width);
        }
        text = format!("{}\n", table.trim_fmt());
    }
    let same = |a: &Row, b: &Row| (a.subject.operator, &a.subject.case) == (b.subject.operator, &b.subject.case);
    text.extend(results.rows.chunk_by(same).map(more));
    text.extend(results.peaks.iter().map(peak));
    text.extend(results.ratios.iter().map(|ratio| format!("{}: {:.2}\n", ratio.what, ratio.value)));
    if !results.rows.is_empty() {
        text.extend([format!(
            "Medians. matmul: the backend's own f32 product at {MATMUL}^3, median of repetitions before and after the case.\n\
             GFLOP/s counts useful operations only; GB/s the least bytes that must move (inputs read once, outputs written \
             once).\n"
        )]);
    }
    text
}

fn cells(row: &Row) -> [String; 8] {
    let subject = &row.subject;
    let rate = |rate: Option<f64>| rate.map_or_else(|| "-".into(), |rate| number(rate / 1e9));
    [
        format!("{} {}", subject.operator, subject.case),
        subject.pass.into(),
        seconds(row.timing.median),
        spread(row.timing.p10, row.timing.p90),
        rate(row.flops()),
        rate(row.bytes()),
        number(row.matmul.rate / 1e9),
        row.share().map_or_else(|| "-".into(), |share| format!("{:.1}%", 100.0 * share)),
    ]
}

/// The shape, tokens per second and parts of the rows of one case.
fn more(rows: &[Row]) -> String {
    let row = &rows[0];
    let tokens = row.tokens().map(|tokens| format!("{tokens:.0} tokens/s"));
    let parts = row.parts.iter().map(|(name, part)| format!("{name} {}", seconds(*part)));
    let said: Vec<String> = std::iter::once(shape::line(&row.subject.sizes)).chain(tokens).chain(parts).collect();
    format!("{} {}: {}\n", row.subject.operator, row.subject.case, said.join(", "))
}

fn peak(peak: &Peak) -> String {
    let mib = |bytes: f64| format!("{:.1} MiB", bytes / f64::from(1 << 20));
    let found = match (&peak.bytes, peak.ratio()) {
        (Ok(bytes), Some(ratio)) => {
            format!(
                "{}, {ratio:.2} x its inputs, outputs and gradients ({})",
                mib(*bytes),
                mib(peak.shape.footprint() as f64)
            )
        }
        (Err(reason), _) => format!("not measured: {reason}"),
        (Ok(bytes), None) => mib(*bytes),
    };
    format!(
        "readout {}, {}: peak of memory of forward and backward {found}\n",
        peak.case,
        shape::line(&peak.shape.sizes())
    )
}

fn cell(column: usize, text: &str) -> Cell {
    Cell::new(text).set_alignment(if column < 2 { CellAlignment::Left } else { CellAlignment::Right })
}

fn number(value: f64) -> String {
    let digits = match value {
        ..1.0 => 3,
        ..100.0 => 1,
        _ => 0,
    };
    format!("{value:.digits$}")
}

fn seconds(seconds: f64) -> String {
    let (size, unit) = unit(seconds);
    format!("{} {unit}", digits(seconds / size))
}

/// Both ends in the upper one's unit.
fn spread(low: f64, high: f64) -> String {
    let (size, unit) = unit(high);
    format!("{} to {} {unit}", digits(low / size), digits(high / size))
}

fn unit(seconds: f64) -> (f64, &'static str) {
    let units = [(1.0, "s"), (1e-3, "ms"), (1e-6, "us")];
    units.into_iter().find(|(size, _)| seconds >= *size).unwrap_or((1e-6, "us"))
}

fn digits(value: f64) -> String {
    let digits = match value {
        ..10.0 => 2,
        ..100.0 => 1,
        _ => 0,
    };
    format!("{value:.digits$}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::readout::Readout;
    use crate::bench::{Matmul, Ratio, Subject, Timing, Work};

    #[test]
    fn every_figure_is_shown_and_what_is_not_counted_is_a_dash() {
        let timing = Timing { median: 0.5, p10: 0.0004, p90: 0.6, repetitions: 5 };
        let matmul = Matmul { before: 1e11, after: 1e11, rate: 1e11 };
        let subject = Subject {
            operator: "readout",
            case: "small".into(),
            pass: "forward",
            sizes: vec![("batch", 1), ("seq", 7)],
            work: Some(Work { flops: 1_000_000_000, bytes: 100_000_000 }),
            tokens: None,
        };
        let counted = Row { subject: subject.clone(), timing, matmul, parts: Vec::new() };
        let step = Row {
            subject: Subject { operator: "step", work: None, tokens: Some(100), ..subject },
            parts: vec![("forward", 0.02)],
            ..counted.clone()
        };
        let shape = Readout::cases()[0].1;
        let peaks = [Ok(2.0 * shape.footprint() as f64), Err("no such file".to_owned())].map(|bytes| Peak {
            case: "long".into(),
            shape,
            bytes,
        });
        let ratios = vec![Ratio { what: "many over few".into(), value: 1.5 }];
        let text = render(&Results { rows: vec![counted, step], peaks: peaks.into(), ratios }, 200);
        for part in [
            "readout small",
            "readout small: B1 S7\n",
            "500 ms",
            "0.40 to 600 ms",
            "2.0%",
            "0.200",
            "step small: B1 S7, 200 tokens/s, forward 20.0 ms\n",
            "2.00 x its inputs, outputs and gradients",
            "not measured: no such file",
            "many over few: 1.50\n",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(text.lines().any(|line| line.starts_with(" step small ") && line.contains(" - ")), "{text}");
        assert_eq!(render(&Results::default(), 80), "");
    }
}
