//! The two ways in which a folder names the same tensors.

use std::borrow::Cow;

/// How tensors are named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Naming {
    /// As in the released checkpoints: `layers.3.attn.wq_b.weight`, `head.weight`.
    Official,
    /// As Hugging Face Transformers writes them: `model.layers.3.attn.wq_b.weight`, `lm_head.weight`.
    Transformers,
}

/// What stands before the official name in Transformers.
const PREFIX: &str = "model.";
/// The head, which has another name there and no prefix.
const HEAD: &str = "head.weight";
const LM_HEAD: &str = "lm_head.weight";

impl Naming {
    /// Tells the naming from the names; parts that csa2 does not have are named alike in both.
    ///
    /// # Errors
    /// When names of both kinds are there.
    pub fn of<'a>(names: impl Iterator<Item = &'a str>) -> Result<Self, String> {
        let (mut official, mut transformers) = (None, None);
        for name in names {
            if name.starts_with(PREFIX) || name.starts_with("lm_head.") {
                transformers.get_or_insert(name);
            } else if ["layers.", "embed.", "norm.", "head."].iter().any(|start| name.starts_with(start)) {
                official.get_or_insert(name);
            }
        }
        match (official, transformers) {
            (Some(one), Some(other)) => Err(format!(
                "mixes the names of the released checkpoints ({one}) and of Transformers ({other}); all must be of one kind"
            )),
            (None, Some(_)) => Ok(Self::Transformers),
            (_, None) => Ok(Self::Official),
        }
    }

    /// The official name of the tensor that is stored as `name`; a name that this naming cannot have stays as it is.
    pub fn official(self, name: &str) -> Cow<'_, str> {
        match self {
            Self::Official => Cow::Borrowed(name),
            Self::Transformers if name == LM_HEAD => Cow::Borrowed(HEAD),
            Self::Transformers => match name.strip_prefix(PREFIX) {
                Some(rest) if rest != HEAD => Cow::Borrowed(rest),
                _ => Cow::Borrowed(name),
            },
        }
    }

    /// The name under which the tensor with an official name is stored.
    pub fn stored(self, official: &str) -> String {
        match self {
            Self::Official => official.into(),
            Self::Transformers if official == HEAD => LM_HEAD.into(),
            Self::Transformers => format!("{PREFIX}{official}"),
        }
    }

    /// The naming in words.
    pub fn describe(self) -> &'static str {
        match self {
            Self::Official => "official names",
            Self::Transformers => "Transformers' names",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_go_both_ways() {
        for official in ["layers.0.attn.attn_sink", "embed.weight", "norm.weight", "head.weight"] {
            for naming in [Naming::Official, Naming::Transformers] {
                let stored = naming.stored(official);
                assert_eq!(naming.official(&stored), official);
                assert_eq!(Naming::of([stored.as_str()].into_iter()), Ok(naming));
            }
        }
        assert_eq!(Naming::Transformers.stored("head.weight"), "lm_head.weight");
        assert_eq!(Naming::Transformers.stored("norm.weight"), "model.norm.weight");
        assert_eq!(Naming::Transformers.official("model.head.weight"), "model.head.weight", "no such name there");
        assert_eq!(Naming::Transformers.official("mtp.0.norm.weight"), "mtp.0.norm.weight");
    }

    #[test]
    fn a_mixture_is_refused_with_one_of_each() {
        let message = Naming::of(["vision.a", "norm.weight", "lm_head.weight"].into_iter()).unwrap_err();
        assert!(message.contains("(norm.weight)") && message.contains("(lm_head.weight)"), "{message}");
        assert_eq!(Naming::of(["vision.a", "mtp.0.b"].into_iter()), Ok(Naming::Official));
    }
}
