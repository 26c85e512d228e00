//! The plan for a terminal: plain tables, no colour, at most 90 columns.

use comfy_table::{CellAlignment, LineStyle, Table, TableStyle};
use csa2_model::config::{ModelConfig, Values};
use csa2_model::cost::{BytesPerToken, DecodeFlops, Format};
use csa2_model::mix::{Mode, PlannedLayer};

use super::{CONTEXTS, PlanView, units};

/// The longest context shown.
const LONGEST: u64 = CONTEXTS[CONTEXTS.len() - 1];

/// Headers underlined per column, and nothing else.
const STYLE: TableStyle = TableStyle::new().header_separator(LineStyle::none().fill('-').junction(' '));

pub(super) fn render(view: &PlanView) -> String {
    let sections = [title(view), layers(view), parameters(view), kept(view), decode(view)];
    let mut text = sections.join("\n\n");
    text.push('\n');
    text
}

fn title(view: &PlanView) -> String {
    let plan = &view.config.layers;
    let modes = Mode::ALL.into_iter().filter(|mode| plan.count(*mode) > 0);
    let counts: Vec<String> = modes.map(|mode| format!("{} {mode}", plan.count(mode))).collect();
    let mut lines =
        vec![format!("{}: {}", view.name, counted(plan.len(), "layer")), plan.to_string(), counts.join(", ")];
    if let Some(start) = plan.decoder_start() {
        lines.push(format!("the last full layer, {start}, begins the decoder"));
        lines.push(replay(&view.config, start));
    }
    if view.config.values == Values::Unrotated {
        lines.push("values are not rotated: an ablation, for training and probing alone".into());
    }
    lines.join("\n")
}

/// What a bounded replay leaves out.
fn replay(config: &ModelConfig, start: usize) -> String {
    let last = config.layers.len() - 1;
    match csa2_infer::decoder(config) {
        Ok(decoder) => format!(
            "bounded replay: layers {start} to {last} may see a prompt's last {} tokens (exact: {})",
            config.window,
            csa2_infer::exact_replay(config, &decoder)
        ),
        Err(_) => format!("no bounded replay: a layer of {start} to {last} keeps something of every token"),
    }
}

fn layers(view: &PlanView) -> String {
    let mut table = table(&["layer", "mode", "ratio", "content from", "address from", "pool"], &[0, 2]);
    for layer in view.config.layers.layers() {
        let ratio = if layer.ratio == 0 { "-".to_owned() } else { layer.ratio.to_string() };
        let from = |source: Option<usize>| match source {
            None => "-".to_owned(),
            Some(source) if source == layer.index => "own".to_owned(),
            Some(source) => format!("layer {source}"),
        };
        table.add_row([
            layer.index.to_string(),
            layer.mode.to_string(),
            ratio,
            from(layer.content_from),
            from(layer.address_from),
            pool(view, layer),
        ]);
    }
    section("Who reads what", &table)
}

fn pool(view: &PlanView, layer: &PlannedLayer) -> String {
    match (layer.builds_pool, layer.pool_from, view.config.pool) {
        (true, _, Some(pool)) => format!("builds {} blocks of {}", pool.blocks, pool.block_size),
        (_, Some(builder), _) => format!("searches that of {builder}"),
        _ => "-".to_owned(),
    }
}

fn parameters(view: &PlanView) -> String {
    let (all, active) = (view.cost.parameters(), view.cost.active_parameters());
    let mut table = table(&["part", "parameters", "used by a token"], &[1, 2]);
    let rows = all.parts().into_iter().zip(active.parts());
    for ((name, all), (_, active)) in rows.filter(|((_, all), _)| *all > 0) {
        // A token looks up one row of the embedding and multiplies by none.
        let active = if active == 0 { "-".to_owned() } else { units::count(active) };
        table.add_row([name.to_owned(), units::count(all), active]);
    }
    table.add_row(["total".to_owned(), units::count(all.total()), units::count(active.total())]);
    let title = format!(
        "Parameters: {}, of which a token passes through {}",
        units::count(all.total()),
        units::count(active.total())
    );
    section(&title, &table)
}

fn kept(view: &PlanView) -> String {
    let BytesPerToken { main_kv, index_key, dense, total } = *view.cost.bytes_per_token();
    let mut table = table(&["kept while decoding", "format", "bytes per token", "at 1M tokens"], &[2, 3]);
    let quantization = view.config.quantization;
    let rows = [
        ("main KV", quantization.main_kv.name(), main_kv),
        ("index key", quantization.index.name(), index_key),
        ("latents of dense layers", quantization.window.name(), dense),
    ];
    for (name, format, bytes) in rows.into_iter().filter(|(_, _, bytes)| bytes.numerator() > 0) {
        // Without a number format, vectors are kept as 32-bit floats.
        let format = if format == "none" { "f32" } else { format };
        table.add_row([
            name.to_owned(),
            format.to_owned(),
            units::fraction(bytes.to_f64()),
            at_longest(bytes.to_f64()),
        ]);
    }
    table.add_row(["total".to_owned(), String::new(), units::fraction(total.to_f64()), at_longest(total.to_f64())]);
    let exact = if total.denominator() == 1 { String::new() } else { format!(" (exactly {total})") };
    let total = units::fraction(total.to_f64());
    let text = section(&format!("Cache: {total} bytes per token{exact}"), &table);
    match windows(view) {
        Some(windows) => format!("{text}\n{windows}"),
        None => text,
    }
}

/// What the windows take, where any layer has one.
fn windows(view: &PlanView) -> Option<String> {
    let plan = &view.config.layers;
    let layers = plan.len() - plan.count(Mode::Dense);
    (layers > 0).then(|| {
        format!(
            "Windows take {} besides, whatever the length: {} of {}.",
            units::bytes(view.cost.window_bytes() as f64),
            counted(layers, "layer"),
            counted(view.config.window, "token"),
        )
    })
}

/// What the longest context shown keeps.
fn at_longest(bytes_per_token: f64) -> String {
    units::bytes(bytes_per_token * LONGEST as f64)
}

fn decode(view: &PlanView) -> String {
    let largest = view.decode.iter().map(DecodeFlops::unweighted).fold(0.0, f64::max);
    let (size, unit) = units::flop_unit(largest);
    let mut headers = vec!["part".to_owned(), "counts as".to_owned()];
    headers.extend(view.decode.iter().map(|flops| units::context(flops.context)));
    let numeric: Vec<usize> = (2..headers.len()).collect();
    let mut table = table(&headers, &numeric);
    let mut add = |name: &str, format: &str, number: &dyn Fn(&DecodeFlops) -> f64| {
        let mut row = vec![name.to_owned(), format.to_owned()];
        row.extend(view.decode.iter().map(|flops| format!("{:.2}", number(flops) / size)));
        table.add_row(row);
    };
    for (place, (name, format, _)) in view.decode.first().map(DecodeFlops::parts).into_iter().flatten().enumerate() {
        add(name, &weight(format), &|flops| flops.parts().get(place).map_or(0.0, |(_, _, flops)| *flops));
    }
    add("all, unweighted", "", &DecodeFlops::unweighted);
    add("all, weighted", "", &DecodeFlops::weighted);
    let growth = view.growth().map_or_else(String::new, |(weighted, unweighted)| {
        format!("From 4K to 1M tokens: x{weighted:.2} weighted, x{unweighted:.2} unweighted.\n")
    });
    let text = section(&format!("Decoding one token, in {unit}, by tokens of context"), &table);
    format!("{text}\n{growth}{WEIGHTING}")
}

/// How the table of decode work is to be read.
const WEIGHTING: &str = "\
A multiply-add is two operations. Rows of parts are unweighted. Weighted as in the
report, whatever the formats of this model: projections and experts count as FP8
(x0.5), index scoring as FP4 (x0.25), read-out and head as BF16 (x1).";

fn weight(format: Format) -> String {
    format!("{} x{}", format.name(), format.weight())
}

fn section(name: &str, table: &Table) -> String {
    format!("{name}\n{}", table.trim_fmt())
}

/// An empty table; the columns named in `right` hold numbers.
fn table<T: ToString>(headers: &[T], right: &[usize]) -> Table {
    let mut table = Table::new();
    table.load_style(STYLE).set_header(headers.iter().map(ToString::to_string));
    for (place, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 1));
        if right.contains(&place) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

fn counted(number: usize, thing: &str) -> String {
    if number == 1 { format!("1 {thing}") } else { format!("{number} {thing}s") }
}

#[cfg(test)]
mod tests {
    use csa2_model::config::ModelConfig;

    use super::super::render_text;

    fn small(mix: &str) -> String {
        let config = ModelConfig { layers: mix.parse().unwrap(), ..ModelConfig::small().unwrap() };
        render_text("small", &config).unwrap()
    }

    /// The cells of the row that begins with `name`.
    fn row<'a>(text: &'a str, name: &str) -> Vec<&'a str> {
        let line = text.lines().find(|line| line.trim_start().starts_with(name)).expect("the row is there");
        line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect()
    }

    #[test]
    fn released_layout() {
        let text = render_text("released", &ModelConfig::deepseek_v41_flash().unwrap()).unwrap();
        assert!(
            text.starts_with("released: 40 layers\nswa*2 (full@2 reuse*5)*3 full+pool reuse*3 (reindex reuse*3)*4\n")
        );
        assert!(text.contains("2 swa, 4 full, 4 reindex, 30 reuse\n"));
        assert!(text.contains("bounded replay: layers 20 to 39 may see a prompt's last 128 tokens (exact: 2541)\n"));
        assert_eq!(row(&text, "13 "), ["13", "reuse", "2", "layer 8", "layer 8", "-"]);
        assert_eq!(row(&text, "20 "), ["20", "full", "1", "own", "own", "builds 2048 blocks of 8"]);
        assert_eq!(row(&text, "28 "), ["28", "reindex", "1", "layer 20", "own", "searches that of 20"]);
        assert_eq!(row(&text, "main KV"), ["main KV", "fp4", "720", "720.0 MiB"]);
        assert!(text.contains("\nCache: 890 bytes per token\n"));
        assert!(text.contains("From 4K to 1M tokens: x1.28 weighted"));
        assert!(text.lines().all(|line| line.chars().count() <= 90), "{text}");
    }

    #[test]
    fn lines_never_end_in_spaces() {
        assert!(small("swa full reuse*2").lines().all(|line| line == line.trim_end()));
    }

    #[test]
    fn fractions_of_a_byte_are_given_exactly() {
        let text = small("swa full@5");
        assert!(text.contains("Cache: 38.4 bytes per token (exactly 192/5)\n"), "{text}");
    }

    #[test]
    fn a_dense_mix_says_that_it_grows() {
        let text = small("dense");
        assert_eq!(row(&text, "latents of dense layers"), ["latents of dense layers", "f32", "128", "128.0 MiB"]);
        assert!(!text.contains("Windows take"));
        assert!(!text.contains("main KV   "));
    }
}
