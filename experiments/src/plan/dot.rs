//! The graph of the layers in Graphviz's language.

use std::fmt::Write;

use csa2_model::config::ModelConfig;
use csa2_model::mix::{Mode, PlannedLayer};

/// The stack grows upwards; what a layer reads is an arrow from its source.
pub(super) fn render(name: &str, config: &ModelConfig) -> String {
    let layers = config.layers.layers();
    let mut dot = String::from("digraph csa2 {\n  rankdir = BT;\n");
    let title =
        format!("{name}\n{}\nsolid: content   dashed: address   dotted: pool   grey: residual stream", config.layers);
    let _ = writeln!(dot, "  label = {};", quoted(&title));
    dot.push_str("  fontname = \"sans-serif\";\n");
    dot.push_str("  node [shape = box, style = \"rounded,filled\", fontname = \"sans-serif\", width = 1.6];\n");
    for layer in layers {
        let (fill, font) = colours(layer.mode);
        let label = quoted(&label(layer));
        let _ = writeln!(dot, "  {} [label = {label}, fillcolor = \"{fill}\", fontcolor = \"{font}\"];", layer.index);
    }
    for layer in layers.iter().skip(1) {
        let _ = writeln!(
            dot,
            "  {} -> {} [color = \"#bbbbbb\", arrowhead = none, weight = 100];",
            layer.index - 1,
            layer.index
        );
    }
    for layer in layers {
        edge(&mut dot, layer.content_from, layer.index, CONTENT);
        edge(&mut dot, layer.address_from, layer.index, ADDRESS);
        edge(&mut dot, layer.pool_from, layer.index, POOL);
    }
    dot.push_str("}\n");
    dot
}

const CONTENT: &str = "style = solid, color = \"#004488\"";
const ADDRESS: &str = "style = dashed, color = \"#a66a00\"";
const POOL: &str = "style = dotted, color = \"#555555\"";

/// What a layer owns is not an arrow.
fn edge(dot: &mut String, source: Option<usize>, reader: usize, style: &str) {
    if let Some(source) = source.filter(|source| *source != reader) {
        // The order of the stack comes from the residual stream alone.
        let _ = writeln!(dot, "  {source} -> {reader} [{style}, constraint = false];");
    }
}

fn label(layer: &PlannedLayer) -> String {
    let ratio = if layer.mode.takes_ratio() && layer.ratio > 1 { format!("@{}", layer.ratio) } else { String::new() };
    let pool = if layer.builds_pool { "+pool" } else { "" };
    format!("{}  {}{ratio}{pool}", layer.index, layer.mode)
}

/// Fill and text colour, told apart by colour-blind readers too.
const fn colours(mode: Mode) -> (&'static str, &'static str) {
    match mode {
        Mode::Swa => ("#dddddd", "#000000"),
        Mode::Full => ("#004488", "#ffffff"),
        Mode::Reindex => ("#ddaa33", "#000000"),
        Mode::Reuse => ("#cce6ff", "#000000"),
        Mode::Stale => ("#bb5566", "#ffffff"),
        Mode::Dense => ("#444444", "#ffffff"),
    }
}

/// A string of Graphviz's language; line breaks stay line breaks.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for character in text.chars() {
        match character {
            '"' | '\\' => out.extend(['\\', character]),
            '\n' => out.push_str("\\n"),
            control if control.is_control() => out.push(' '),
            other => out.push(other),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use csa2_model::config::PoolConfig;

    use super::*;

    fn dot(mix: &str) -> String {
        let mut config = ModelConfig { layers: mix.parse().unwrap(), ..ModelConfig::small().unwrap() };
        config.pool = config.layers.has_pool().then_some(PoolConfig { blocks: 4, block_size: 4 });
        render("a \"name\"", &config)
    }

    #[test]
    fn edges_show_who_reads_what() {
        let dot = dot("swa full@2+pool reindex reuse");
        for line in [
            "  1 -> 2 [style = solid, color = \"#004488\", constraint = false];",
            "  1 -> 2 [style = dotted, color = \"#555555\", constraint = false];",
            "  1 -> 3 [style = solid, color = \"#004488\", constraint = false];",
            "  2 -> 3 [style = dashed, color = \"#a66a00\", constraint = false];",
            "  1 [label = \"1  full@2+pool\", fillcolor = \"#004488\", fontcolor = \"#ffffff\"];",
        ] {
            assert!(dot.lines().any(|found| found == line), "{line}\n{dot}");
        }
        assert_eq!(dot.matches("style = solid").count(), 2);
        assert_eq!(dot.matches("style = dashed").count(), 1);
        assert_eq!(dot.matches("style = dotted").count(), 1);
    }

    #[test]
    fn names_are_quoted() {
        assert!(dot("swa").contains("label = \"a \\\"name\\\"\\nswa\\nsolid"));
        assert_eq!(quoted("\\\t"), "\"\\\\ \"");
    }

    #[test]
    fn every_mode_has_its_colour() {
        let mut fills = Mode::ALL.map(|mode| colours(mode).0).to_vec();
        fills.sort_unstable();
        fills.dedup();
        assert_eq!(fills.len(), Mode::ALL.len());
    }
}
