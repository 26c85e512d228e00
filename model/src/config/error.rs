//! What can be wrong with a model configuration, and what would be right.

use thiserror::Error;

use crate::mix::MixError;

/// A model configuration that does not describe a network.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ConfigError {
    /// A value that no network can have.
    #[error("`{key} = {value}`: {wrong}; {right}")]
    Value {
        /// Key inside the model table, such as `ffn.active`.
        key: &'static str,
        /// The value found.
        value: String,
        /// What is wrong with it.
        wrong: String,
        /// What would be right.
        right: String,
    },
    /// A key that the rest of the configuration asks for.
    #[error("`{key}` is missing: {wrong}; {right}")]
    Missing {
        /// Key inside the model table.
        key: &'static str,
        /// Why it is needed.
        wrong: String,
        /// What would be right.
        right: String,
    },
    /// The layer mix is wrong.
    #[error(transparent)]
    Mix(#[from] MixError),
    /// A Hugging Face `config.json` without a key that the network needs.
    #[error("config.json has no `{key}`; it is needed, as {expected}")]
    HfMissing {
        /// The key, with its path.
        key: String,
        /// The type expected.
        expected: &'static str,
    },
    /// A Hugging Face value of another type.
    #[error("config.json has `{key}` = {found}; it must be {expected}")]
    HfType {
        /// The key, with its path.
        key: String,
        /// The value found.
        found: String,
        /// The type or value expected.
        expected: String,
    },
    /// A Hugging Face key that may change what the network computes.
    #[error(
        "config.json has `{key}` = {found}, which is not known here and may change what the network computes; \
         remove it if it does not"
    )]
    HfUnknown {
        /// The key, with its path.
        key: String,
        /// The value found.
        found: String,
    },
    /// A Hugging Face configuration of a model with parts that csa2 does not have.
    #[error("config.json asks for what csa2 does not have: {parts}; `csa2 import --skip-unsupported` leaves it out")]
    HfUnsupported {
        /// The parts, each with a key that asks for it.
        parts: String,
    },
    /// A configuration that the Hugging Face form cannot say.
    #[error("`{key}` = {value} has no Hugging Face form: {right}")]
    NotInHf {
        /// Key inside the model table.
        key: &'static str,
        /// The value found.
        value: String,
        /// What that form can say.
        right: &'static str,
    },
}
