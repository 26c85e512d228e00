//! Parts of released models that csa2 does not have, known by the names of their tensors and configuration keys.

/// A part that csa2 does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    /// Tables looked up by the last few tokens.
    NgramMemory,
    /// The vision tower, its projector, and what routes image tokens.
    Vision,
    /// Layers that draft tokens ahead.
    Draft,
}

impl Part {
    /// All parts.
    pub const ALL: [Self; 3] = [Self::NgramMemory, Self::Vision, Self::Draft];

    /// The part in words.
    pub const fn describe(self) -> &'static str {
        match self {
            Self::NgramMemory => "n-gram memory",
            Self::Vision => "vision",
            Self::Draft => "draft layers",
        }
    }

    /// The part that a tensor belongs to, by its official name in a model of `layers` layers.
    pub fn of_tensor(official: &str, layers: usize) -> Option<Self> {
        if official.starts_with("mtp.") {
            return Some(Self::Draft);
        }
        let vision = ["vision.", "aligner."].iter().any(|start| official.starts_with(start));
        if vision || ["image_start", "image_end", "image_newline"].contains(&official) {
            return Some(Self::Vision);
        }
        let (number, rest) = official.strip_prefix("layers.")?.split_once('.')?;
        // Layers are numbered without leading zeros or signs.
        let number: usize = number.parse().ok().filter(|n: &usize| n.to_string() == number)?;
        if number >= layers {
            return Some(Self::Draft);
        }
        match rest {
            "ffn.gate.bias_vl" => Some(Self::Vision),
            rest if rest.starts_with("engram.") => Some(Self::NgramMemory),
            _ => None,
        }
    }

    /// The part that a key of a Hugging Face configuration belongs to.
    pub fn of_key(key: &str) -> Option<Self> {
        match key {
            "vision_config" | "image_token_id" => Some(Self::Vision),
            "num_nextn_predict_layers" => Some(Self::Draft),
            key if key.starts_with("dspark_") => Some(Self::Draft),
            key if key.starts_with("engram_") => Some(Self::NgramMemory),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_told_from_names() {
        for (name, part) in [
            ("mtp.0.attn.wq_a.weight", Some(Part::Draft)),
            ("layers.40.attn.wq_a.weight", Some(Part::Draft)),
            ("layers.39.attn.wq_a.weight", None),
            ("layers.1.engram.embed.weight", Some(Part::NgramMemory)),
            ("layers.1.engram", None),
            ("layers.041.attn.wq_a.weight", None),
            ("layers.+41.attn.wq_a.weight", None),
            ("layers.99999999999999999999.attn.wq_a.weight", None),
            ("layers.3.ffn.gate.bias_vl", Some(Part::Vision)),
            ("layers.3.ffn.gate.bias", None),
            ("vision.blocks.31.attn.wqkv.weight", Some(Part::Vision)),
            ("aligner.w1.weight", Some(Part::Vision)),
            ("image_newline", Some(Part::Vision)),
            ("image_newlines", None),
            ("visionary.weight", None),
            ("head.weight", None),
            ("", None),
        ] {
            assert_eq!(Part::of_tensor(name, 40), part, "{name}");
        }
    }

    #[test]
    fn parts_are_told_from_keys() {
        for (key, part) in [
            ("engram_n_heads", Some(Part::NgramMemory)),
            ("dspark_block_size", Some(Part::Draft)),
            ("num_nextn_predict_layers", Some(Part::Draft)),
            ("vision_config", Some(Part::Vision)),
            ("hidden_size", None),
            ("engram", None),
        ] {
            assert_eq!(Part::of_key(key), part, "{key}");
        }
    }
}
