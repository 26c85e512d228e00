//! From a parameter's place in the modules to its name in a released checkpoint.

/// Where a visitor of modules is.
#[derive(Clone, Debug, Default)]
pub struct ParameterPath {
    parts: Vec<String>,
    owners: Vec<String>,
}

impl ParameterPath {
    /// To be called from `enter_module`.
    pub fn enter(&mut self, name: &str, container: &str) {
        self.parts.push(name.to_string());
        self.owners.push(container.to_string());
    }

    /// To be called from `exit_module`.
    pub fn exit(&mut self) {
        self.parts.pop();
        self.owners.pop();
    }

    /// Whether the parameter lies the other way round in a checkpoint: Linear weights are `[in, out]` here, `[out, in]` there.
    pub fn is_transposed(&self) -> bool {
        self.owners.last().is_some_and(|owner| owner == "Struct:Linear")
    }

    /// The name in a released checkpoint, such as `layers.3.attn.wq_b.weight`: an attention layer's tensors stand there side
    /// by side, without the parts that group them here.
    pub fn official(&self) -> String {
        let grouping = |part: &str, owner: &str| matches!(part, "query" | "window" | "output") || is_variant(owner);
        let parts = self.parts.iter().zip(&self.owners);
        let parts: Vec<&str> =
            parts.filter(|(part, owner)| !grouping(part, owner)).map(|(part, _)| part.as_str()).collect();
        let mut name = parts.join(".");
        match parts[..] {
            [.., "wo_a"] => name += ".weight",
            // Hyper-connections: `layers.3.hc_attn_fn`.
            [.., mix, "function"] if mix.starts_with("hc_") => {
                name.truncate(name.len() - ".function".len());
                name += "_fn";
            }
            [.., mix, last] if mix.starts_with("hc_") => {
                name.truncate(name.len() - last.len() - 1);
                name = format!("{name}_{last}");
            }
            _ => {}
        }
        name
    }
}

/// Whether a visitor of modules that was told `container` has entered a variant of an enumeration, which is no place of its own.
pub fn is_variant(container: &str) -> bool {
    container.starts_with("Enum:")
}

/// Whether a parameter, by official name, belongs to an indexer and so learns from the indexer's loss alone.
pub fn is_indexer(official: &str) -> bool {
    official.contains("indexer.")
}
