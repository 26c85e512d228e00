//! The rotary bases and the stretching of frequencies: `rope_parameters`, as Transformers writes them, or `rope_theta`,
//! `compress_rope_theta` and `rope_scaling`, as the released file does.

use serde_json::{Value, json};

use super::keys::Keys;
use crate::config::{ConfigError, ModelConfig, YarnConfig, beta_fast, beta_slow};

impl ModelConfig {
    pub(super) fn rope_parameters(&self) -> Value {
        let part = self.rope_dim as f64 / self.head_dim as f64;
        let compress = match self.yarn {
            None => {
                json!({"rope_type": "default", "rope_theta": self.compress_rope_theta, "partial_rotary_factor": part})
            }
            Some(yarn) => json!({
                "rope_type": "yarn",
                "rope_theta": self.compress_rope_theta,
                "partial_rotary_factor": part,
                "factor": yarn.factor,
                "original_max_position_embeddings": yarn.original_length,
                "beta_fast": yarn.beta_fast,
                "beta_slow": yarn.beta_slow,
                "attention_factor": 1.0,
            }),
        };
        let main = json!({"rope_type": "default", "rope_theta": self.rope_theta, "partial_rotary_factor": part});
        json!({"main": main, "compress": compress})
    }
}

/// What is said of positions.
pub(super) struct Rope {
    pub(super) theta: f64,
    pub(super) compress_theta: f64,
    pub(super) yarn: Option<YarnConfig>,
}

impl Rope {
    /// `part` is the rotary share of a head, where the head has channels at all. Where both forms are there, they must agree.
    pub(super) fn read(keys: &mut Keys, part: Option<f64>) -> Result<Self, ConfigError> {
        check_part(keys, part)?;
        let flat = keys.optional("rope_theta").is_some();
        if keys.optional("rope_parameters").is_none() && flat {
            let theta = keys.number("rope_theta")?;
            let compress_theta = keys.number("compress_rope_theta")?;
            return Ok(Self { theta, compress_theta, yarn: scaling(keys)? });
        }
        let rope = Self::nested(keys, part)?;
        keys.fixed("rope_theta", &json!(rope.theta))?;
        keys.fixed("compress_rope_theta", &json!(rope.compress_theta))?;
        if let Some(value) = keys.optional("rope_scaling")
            && scaling(keys)? != rope.yarn
        {
            return Err(keys.refuse("rope_scaling", &value, "what `rope_parameters.compress` says"));
        }
        Ok(rope)
    }

    fn nested(keys: &mut Keys, part: Option<f64>) -> Result<Self, ConfigError> {
        let mut both = keys.object("rope_parameters")?;
        let mut main = both.object("main")?;
        main.fixed("rope_type", &json!("default"))?;
        check_part(&mut main, part)?;
        let theta = main.number("rope_theta")?;
        main.finish()?;
        let mut compress = both.object("compress")?;
        check_part(&mut compress, part)?;
        let compress_theta = compress.number("rope_theta")?;
        let yarn = yarn(&mut compress)?;
        compress.finish()?;
        both.finish()?;
        Ok(Self { theta, compress_theta, yarn })
    }
}

/// `rope_scaling`, which stretches the layers with compressed entries alone.
fn scaling(keys: &mut Keys) -> Result<Option<YarnConfig>, ConfigError> {
    if keys.optional("rope_scaling").is_none() {
        return Ok(None);
    }
    let mut scaling = keys.object("rope_scaling")?;
    let yarn = yarn(&mut scaling)?;
    scaling.finish()?;
    Ok(yarn)
}

/// The rotary share of a head, which the two dimensions already say.
fn check_part(keys: &mut Keys, part: Option<f64>) -> Result<(), ConfigError> {
    let Some(part) = part else {
        keys.ignore("partial_rotary_factor");
        return Ok(());
    };
    keys.fixed("partial_rotary_factor", &json!(part))
}

fn yarn(keys: &mut Keys) -> Result<Option<YarnConfig>, ConfigError> {
    if keys.optional("rope_type") != Some(json!("yarn")) {
        keys.fixed("rope_type", &json!("default"))?;
        return Ok(None);
    }
    keys.ignore("rope_type");
    keys.fixed("attention_factor", &json!(1.0))?;
    let mut or = |key, default: f64| keys.optional(key).map_or(Ok(default), |_| keys.number(key));
    let (beta_fast, beta_slow) = (or("beta_fast", beta_fast())?, or("beta_slow", beta_slow())?);
    let factor = keys.number("factor")?;
    Ok(Some(YarnConfig {
        factor,
        original_length: keys.size("original_max_position_embeddings")?,
        beta_fast,
        beta_slow,
    }))
}
