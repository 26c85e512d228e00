//! The report for a terminal.

use std::ops::Range;

use comfy_table::{Cell, CellAlignment, ContentArrangement, LineStyle, Table, presets};

use super::analysis::Analysis;
use super::joint::{has_joint_ranking, joint_rows, joint_warnings};
use super::matrix::{self, Matrix};
use super::table::{Cells, KEY, headers, missing_lines};
use super::{Ablation, format, words};

/// The report for a terminal of `width` columns: for each ablation its table, its answer and its missing runs, and a
/// joint ranking where several share a metric. A table that does not fit is split into one of quality and one of cost.
pub fn terminal_table(ablations: &[Ablation], width: u16) -> String {
    let analyses: Vec<Analysis> = ablations.iter().map(Analysis::new).collect();
    let mut sections: Vec<String> = analyses.iter().map(|analysis| section(analysis, width)).collect();
    if has_joint_ranking(&analyses) {
        sections.push(joint(&analyses, width));
    }
    let warnings = joint_warnings(&analyses);
    sections.extend(warnings.iter().map(|warning| format!("Warning: {}\n", format::terminal(warning))));
    sections.join("\n")
}

fn section(analysis: &Analysis, width: u16) -> String {
    let record = &analysis.ablation.record;
    let mut out = format!("{} · {}\n", format::terminal(&record.title), format::terminal(&record.task));
    let whole = table(analysis, true, 0..8);
    if fits(&whole, width) {
        out.push_str(&print(whole, width));
    } else {
        out.push_str(&print(table(analysis, false, 0..4), width));
        out.push('\n');
        out.push_str(&print(table(analysis, false, 4..8), width));
        for row in &analysis.rows {
            let variant = &row.variant.record;
            out.push_str(&format!("  {}\n", format::terminal(&format!("{}: {}", variant.name, variant.layers))));
        }
    }
    let matrices = Matrix::all(analysis);
    let mut more = |title: String, (titles, rows): (Vec<String>, Vec<Vec<String>>)| {
        let mut table = new_table();
        table.set_header(title_cells(&titles, 1));
        for row in &rows {
            table.add_row(cells(row, 1));
        }
        out.push_str(&format!("\n{title}\n"));
        out.push_str(&print(table, width));
    };
    for matrix in &matrices {
        more(format!("The same weights in other models: {}", format::terminal(&matrix.label)), matrix.cells());
    }
    let searches = matrix::searches(analysis);
    if let Some(searches) = searches {
        more(matrix::searches_key(analysis), searches);
    }
    for line in matrix::answer(analysis) {
        out.push_str(&format!("- {}\n", format::terminal(&line)));
    }
    if matrices.iter().any(Matrix::has_foreign) {
        out.push_str(&format!("{}\n", matrix::FOREIGN));
    }
    for sentence in words::answer(analysis) {
        out.push_str(&format!("- {}\n", sentence.print(format::terminal, format::terminal)));
    }
    for line in missing_lines(analysis) {
        out.push_str(&format!("  {}\n", format::terminal(&line)));
    }
    out.push_str(KEY);
    out.push('\n');
    out
}

/// A table of rank, variant, the mix where it is wanted, and the `columns` of [`headers`].
fn table(analysis: &Analysis, with_mix: bool, columns: Range<usize>) -> Table {
    let names = if with_mix { vec!["#", "variant", "mix"] } else { vec!["#", "variant"] };
    let left = names.len();
    let pick = |texts: [String; 8]| texts.into_iter().skip(columns.start).take(columns.len());
    let titles: Vec<String> = names.into_iter().map(str::to_owned).chain(pick(headers(analysis))).collect();
    let mut table = new_table();
    table.set_header(title_cells(&titles, left));
    for row in &analysis.rows {
        let texts = Cells::new(row);
        let record = &row.variant.record;
        let names = [texts.rank.clone(), record.name.clone(), record.layers.clone()];
        let line: Vec<String> = names.into_iter().take(left).chain(pick(texts.columns())).collect();
        table.add_row(cells(&line, left));
    }
    table
}

fn joint(analyses: &[Analysis], width: u16) -> String {
    let mut table = new_table();
    let label = analyses.first().map(|analysis| analysis.metric().label.as_str()).unwrap_or_default();
    let titles = ["ablation", "variant", label, "seeds", "bytes/token", "decode FLOPs", "tokens/s"];
    table.set_header(title_cells(&titles.map(str::to_owned), 2));
    for (index, row) in joint_rows(analyses) {
        let texts = Cells::new(row);
        let ablation = analyses[index].ablation.record.name.clone();
        let name = row.variant.record.name.clone();
        let line = [ablation, name, texts.metric, texts.seeds, texts.bytes, texts.flops, texts.speed];
        table.add_row(cells(&line, 2));
    }
    format!("All ablations\n{}", print(table, width))
}

/// An empty table in the style of all.
pub fn new_table() -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_HORIZONTAL_ONLY.row_separator(LineStyle::none()));
    table
}

/// Cells of a row: the first `left` aligned to the left, the others to the right.
pub fn cells(texts: &[String], left: usize) -> Vec<Cell> {
    let alignment = |index| {
        if index < left { CellAlignment::Left } else { CellAlignment::Right }
    };
    let texts = texts.iter().enumerate();
    texts.map(|(index, text)| Cell::new(format::terminal(text)).set_alignment(alignment(index))).collect()
}

/// Cells of the titles: in columns of numbers, long titles take two lines.
pub fn title_cells(titles: &[String], left: usize) -> Vec<Cell> {
    let broken = |title: &str| title.replacen(" to ", " to\n", 1).replacen(" at ", "\nat ", 1).replacen('/', "/\n", 1);
    let cell = |(index, title): (usize, &String)| {
        let title = format::terminal(title);
        if index < left { Cell::new(title) } else { Cell::new(broken(&title)).set_alignment(CellAlignment::Right) }
    };
    titles.iter().enumerate().map(cell).collect()
}

fn fits(table: &Table, width: u16) -> bool {
    table.lines().all(|line| line.chars().count() <= usize::from(width))
}

/// The table with a last newline; cells are broken over lines where it does not fit otherwise.
pub fn print(mut table: Table, width: u16) -> String {
    if !fits(&table, width) {
        table.set_content_arrangement(ContentArrangement::Dynamic).set_width(width);
    }
    format!("{}\n", table.trim_fmt())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::table::tests::nasty;
    use crate::report::testing::{Fake, ablation};

    #[test]
    fn the_terminal_table_keeps_to_its_width_and_lists_what_is_missing() {
        let ablations = [nasty()];
        for width in [60, 80, 120, 200] {
            let text = terminal_table(&ablations, width);
            let is_table = |line: &&str| line.contains('─') || line.contains('═');
            let widest = text.lines().filter(is_table).map(|line| line.chars().count()).max().unwrap();
            assert!(widest <= usize::from(width), "{widest} > {width}\n{text}");
            assert!(text.contains("plain, seed 2: failed: loss is NaN, at step 3"), "{text}");
            assert!(text.contains("old/seed-9: on disk"), "{text}");
            assert!(text.contains("swa full reuse*2"), "{text}");
        }
    }

    #[test]
    fn joined_ablations_are_ranked_together() {
        let other = ablation(&[Fake::new("third", 5.0, &[0.7, 0.7])]);
        let text = terminal_table(&[nasty(), other], 200);
        let joint = text.split("All ablations").nth(1).unwrap();
        let place = |name: &str| joint.find(name).unwrap();
        assert!(place("plain") < place("third") && place("third") < place("a|b"), "{joint}");
    }
}
