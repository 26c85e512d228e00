//! Results for people.

use comfy_table::{CellAlignment, ContentArrangement, LineStyle, Table, presets};

use super::check::{Comparison, Kind, NotRun};
use super::{Compared, Outcome, Report};
use crate::backend::Backend;

const TITLES: [&str; 8] = ["case", "", "tensors", "absolute", "relative", "tolerance", "indices", "worst"];

/// Columns that hold numbers.
const RIGHT: [usize; 5] = [2, 3, 4, 5, 6];

const KEY: &str = "\
absolute, relative: largest difference of numbers; relative is over the expected number where that
is above 1, for gradients over the largest expected. indices: how many differ of those compared,
also masks, codes and numbers compared to the last bit. worst: the tensor nearest to its tolerance.
";

/// The table for a terminal of `width` columns, what failed, what was left out, and the count.
pub fn render(report: &Report, width: u16) -> String {
    let failed = report.cases.iter().filter(|case| case.outcome() == Outcome::Failed);
    let lines = failed.flat_map(failures).chain(report.cases.iter().flat_map(excused));
    let lines = lines.chain(left_out(report)).chain(unread(report)).chain(elsewhere(report)).chain([format!(
        "{} passed, {} failed, {} not run",
        report.count(Outcome::Passed),
        report.count(Outcome::Failed),
        report.count(Outcome::NotRun)
    )]);
    let lines: Vec<String> = lines.collect();
    format!("{}{KEY}{}\n", table(report, width), lines.join("\n"))
}

fn table(report: &Report, width: u16) -> String {
    let rows: Vec<[String; 8]> = report.cases.iter().map(row).collect();
    let bare = filled(&rows, |_| String::new());
    let before = bare.lines().map(|line| line.chars().count()).max().unwrap_or(0);
    // What is left of the line belongs to the name of the worst tensor, of which the end tells more than the beginning.
    let title = TITLES[7].len();
    let room = (usize::from(width) + title).saturating_sub(before).max(title);
    let mut table = filled(&rows, |worst| shortened(worst, room));
    if table.lines().any(|line| line.chars().count() > usize::from(width)) {
        table.set_content_arrangement(ContentArrangement::Dynamic).set_width(width);
    }
    format!("{}\n", table.trim_fmt())
}

fn filled(rows: &[[String; 8]], worst: impl Fn(&str) -> String) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_HORIZONTAL_ONLY.row_separator(LineStyle::none())).set_header(TITLES);
    for (place, column) in table.column_iter_mut().enumerate() {
        // One blank between columns, two around the names.
        column.set_padding((0, u16::from([0, 6].contains(&place))));
        if RIGHT.contains(&place) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    for row in rows {
        let mut row = row.clone();
        row[7] = worst(&row[7]);
        table.add_row(row);
    }
    table
}

fn row(case: &Compared) -> [String; 8] {
    let close = || case.comparisons.iter().filter(|comparison| comparison.share().is_some());
    let largest =
        |value: fn(&Comparison) -> f64| close().map(value).reduce(f64::max).map_or_else(|| "-".into(), scientific);
    let exact = || case.comparisons.iter().filter(|comparison| comparison.share().is_none());
    let sum = |count: fn(&Comparison) -> usize| exact().map(count).sum::<usize>();
    let indices = match sum(|comparison| comparison.compared) {
        0 => "-".into(),
        compared => format!("{}/{compared}", sum(|comparison| comparison.differing)),
    };
    let result = match case.outcome() {
        Outcome::Passed => "ok",
        Outcome::Failed => "FAILED",
        Outcome::NotRun => "-",
    };
    [
        case.name.clone(),
        result.into(),
        case.comparisons.len().to_string(),
        largest(|comparison| comparison.absolute),
        largest(|comparison| comparison.relative),
        tolerances(case),
        indices,
        worst(case).map_or_else(String::new, |comparison| comparison.name.clone()),
    ]
}

/// All tolerances of the case, the widest first.
fn tolerances(case: &Compared) -> String {
    let mut limits: Vec<f64> = case
        .comparisons
        .iter()
        .filter_map(|comparison| match comparison.kind {
            Kind::Close(tolerance) => Some(tolerance.limit),
            Kind::Equal | Kind::Bits => None,
        })
        .collect();
    limits.sort_by(|a, b| b.total_cmp(a));
    limits.dedup();
    match limits.is_empty() {
        true if case.comparisons.is_empty() => "-".into(),
        true => "exact".into(),
        false => limits.iter().map(|limit| format!("{limit:e}")).collect::<Vec<_>>().join(" "),
    }
}

/// The first exact comparison that failed, or the one that came nearest to its tolerance.
fn worst(case: &Compared) -> Option<&Comparison> {
    let share = |comparison: &Comparison| match comparison.share() {
        None if !comparison.passed() => Some(f64::INFINITY),
        share => share,
    };
    let shares = case.comparisons.iter().filter_map(|comparison| Some((share(comparison)?, comparison)));
    // Of equal ones, the first.
    shares.rev().max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, comparison)| comparison)
}

fn scientific(value: f64) -> String {
    match value {
        0.0 => "0".into(),
        0.01..1000.0 => format!("{value:.2}"),
        _ => format!("{value:.1e}"),
    }
}

/// The end of a name that is too long.
fn shortened(name: &str, room: usize) -> String {
    let length = name.chars().count();
    if length <= room {
        return name.into();
    }
    std::iter::once('…').chain(name.chars().skip(length + 1 - room)).collect()
}

/// Each comparison of a case that failed, and the error that ended it.
fn failures(case: &Compared) -> impl Iterator<Item = String> {
    let failed = case.comparisons.iter().filter(|comparison| !comparison.passed()).map(failure);
    let error = case.error.iter().map(|error| error.replace('\n', "\n    "));
    failed.chain(error).map(|line| format!("{}: {line}", case.name))
}

fn failure(comparison: &Comparison) -> String {
    let Comparison { name, on, kind, compared, differing, absolute, relative, .. } = comparison;
    if let Some((found, expected)) = comparison.counts {
        return format!("{name} ({on}): {found} numbers where {expected} are expected");
    }
    let Some(worst) = &comparison.worst else { return format!("{name} ({on}): nothing was compared") };
    let place: Vec<String> = worst.place.iter().map(ToString::to_string).collect();
    let place = place.join(", ");
    let how_far = match kind {
        Kind::Close(tolerance) => format!(
            "off by {}, relative {}, tolerance {:e}",
            scientific(*absolute),
            scientific(*relative),
            tolerance.limit
        ),
        Kind::Equal => "must be equal".into(),
        Kind::Bits => "must be equal to the last bit".into(),
    };
    format!(
        "{name}[{place}] ({on}): found {}, expected {}; {how_far}; {differing} of {compared} differ",
        worst.found, worst.expected
    )
}

/// Differences that the case leaves open.
fn excused(case: &Compared) -> impl Iterator<Item = String> {
    let some = case.comparisons.iter().filter(|comparison| comparison.excused > 0);
    some.map(|Comparison { name, excused, compared, .. }| {
        format!("{}: {name}: {excused} of {compared} differ in rows whose margin leaves that open", case.name)
    })
}

/// What was not run, by reason.
fn left_out(report: &Report) -> impl Iterator<Item = String> {
    let mut reasons: Vec<(&str, Vec<String>)> = Vec::new();
    for case in &report.cases {
        for NotRun { part, reason } in &case.not_run {
            let whole = case.outcome() == Outcome::NotRun;
            let what = if whole { case.name.clone() } else { format!("{} ({part})", case.name) };
            match reasons.iter_mut().find(|(known, _)| known == reason) {
                Some((_, cases)) => cases.push(what),
                None => reasons.push((reason, vec![what])),
            }
        }
    }
    reasons.into_iter().map(|(reason, cases)| format!("not run: {}: {reason}", cases.join(", ")))
}

/// Tensors that no comparison looks at.
fn unread(report: &Report) -> impl Iterator<Item = String> {
    let some = report.cases.iter().filter(|case| !case.unread.is_empty());
    some.map(|case| format!("not compared: {}: {}", case.name, few(&case.unread)))
}

/// What was compared on the CPU though a GPU was asked for.
fn elsewhere(report: &Report) -> impl Iterator<Item = String> {
    report.cases.iter().filter_map(|case| {
        let others = case.comparisons.iter().filter(|comparison| comparison.on != report.backend.name());
        let names: Vec<String> = others.map(|comparison| comparison.name.clone()).collect();
        let some = report.backend != Backend::Flex && !names.is_empty();
        some.then(|| format!("on the CPU: {}: {}", case.name, few(&names)))
    })
}

/// The first few names and how many more there are.
fn few(names: &[String]) -> String {
    const SHOWN: usize = 6;
    let shown = names[..names.len().min(SHOWN)].join(", ");
    match names.len().checked_sub(SHOWN) {
        None | Some(0) => shown,
        Some(more) => format!("{shown} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conform::case::Array;
    use crate::conform::check::{Check, HOST};
    use crate::conform::testing;
    use crate::conform::tolerance::{LAYER, MODEL};

    fn array<T: Copy>(values: [T; 4]) -> Array<T> {
        Array { name: "x".into(), dims: vec![2, 2], values: values.to_vec() }
    }

    fn compared(name: &str, run: impl FnOnce(&mut Check)) -> Compared {
        let (_folder, case) = testing::empty_case();
        let mut check = Check::new(&case, "flex");
        run(&mut check);
        let (comparisons, not_run) = (check.comparisons, check.not_run);
        Compared { name: name.into(), comparisons, not_run, unread: Vec::new(), error: None }
    }

    fn report() -> Report {
        let fine = compared("b_attn_grad_full1_candidate_source", |check| {
            check.close(
                "grad.indexer.weights_proj.weight",
                &[1.0, 2.0, 3.0, 400.0],
                &array([1.0, 2.0, 3.0, 400.001]),
                LAYER,
            );
            check.equal("topk", &[1, 2, 3, 4], &array([1, 2, 3, 4]));
            check.equal_unless("cap.topk", &[1, 2, 3, 5], &array([1, 2, 3, 4]), |row| row == 1);
        });
        let mut wrong = compared("c_model", |check| {
            check.close("logits", &[1.0, 2.0, f64::NAN, 4.0], &array([1.0, 2.5, 3.0, 4.0]), MODEL);
            check.on = HOST;
            check.equal("mask", &[0, 1, 0, 0], &array([0, 1, 1, 1]));
            check.leave_out("loss", "there is none");
        });
        wrong.error = Some("wo_a: missing".into());
        let mut idle = compared("k_hull", |check| check.leave_out("everything", "not yet"));
        idle.unread = (0..9).map(|number| format!("t{number}")).collect();
        let cases = vec![fine, wrong, idle];
        Report { folder: "cases".into(), backend: Backend::Flex, hardware: "a processor".into(), cases }
    }

    #[test]
    fn one_line_a_case_and_what_differs_below() {
        let text = render(&report(), 100);
        for line in [
            "b_attn_grad_full1_candidate_source  ok           3   1.0e-3   2.5e-6      1e-5     0/8  …proj.weight",
            "c_model                             FAILED       2      inf      inf      1e-4     2/4  logits",
            "k_hull                              -            0        -        -         -       -",
        ] {
            assert!(text.contains(&format!("\n{line}")), "{line}\n{text}");
        }
        let below = text.split("nearest to its tolerance.\n").nth(1).unwrap();
        let expected = "\
c_model: logits[1, 0] (flex): found NaN, expected 3; off by inf, relative inf, tolerance 1e-4; 2 of 4 differ
c_model: mask[1, 0] (host): found 0, expected 1; must be equal; 2 of 4 differ
c_model: wo_a: missing
b_attn_grad_full1_candidate_source: cap.topk: 1 of 4 differ in rows whose margin leaves that open
not run: c_model (loss): there is none
not run: k_hull: not yet
not compared: k_hull: t0, t1, t2, t3, t4, t5 and 3 more
1 passed, 1 failed, 1 not run
";
        assert_eq!(below, expected);
    }

    #[test]
    fn the_table_keeps_to_its_width() {
        for width in [80, 100, 160] {
            let text = render(&report(), width);
            let table = text.split("absolute, relative:").next().unwrap();
            let widest = table.lines().map(|line| line.chars().count()).max().unwrap();
            assert!(widest <= usize::from(width), "{widest} > {width}\n{table}");
            assert!(table.contains("indices"), "{table}");
        }
        assert!(render(&report(), 160).contains(" grad.indexer.weights_proj.weight\n"));
        assert!(KEY.lines().all(|line| line.len() <= 100));
    }
}
