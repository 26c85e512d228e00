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
        let grouping = |part: &&String| !matches!(part.as_str(), "query" | "window" | "output");
        let mut name = self.parts.iter().filter(grouping).map(String::as_str).collect::<Vec<_>>().join(".");
        if name.ends_with("wo_a") {
            name += ".weight";
        }
        name
    }
}

/// Whether a parameter, by official name, belongs to an indexer and so learns from the indexer's loss alone.
pub fn is_indexer(official: &str) -> bool {
    official.contains("indexer.")
}
