//! A run that makes afresh what the probed one reuses. Where both are full its layer is a yardstick: as far apart are two layers that lack nothing.

use std::path::{Path, PathBuf};

use burn::tensor::Device;
use csa2_model::attention::Attention;
use csa2_model::config::ModelConfig;
use csa2_model::mix::Mode;
use csa2_train::runs::Run;

use super::ProbeError;

/// A run whose layers are full where the probed run's reuse.
pub(super) struct Twin {
    pub(super) folder: PathBuf,
    pub(super) step: u64,
    pub(super) config: ModelConfig,
    /// Its layers by number, where they are `full` with entries of as many tokens.
    layers: Vec<(usize, Attention)>,
}

impl Twin {
    /// Opens a run as the twin of a model of which the layers `probed` are looked at.
    pub(super) fn open(
        folder: &Path,
        model: &ModelConfig,
        probed: impl Fn(usize) -> bool,
        device: &Device,
    ) -> Result<Self, ProbeError> {
        let run = Run::open(folder).map_err(ProbeError::Twin)?;
        let config = run.model_config().clone();
        let twin = folder.display().to_string();
        let unlike = |message: String| ProbeError::Unlike { twin: twin.clone(), message };
        let sizes = |c: &ModelConfig| {
            [
                ("layers", c.layers.len()),
                ("d_model", c.d_model),
                ("heads", c.heads),
                ("head_dim", c.head_dim),
                ("rope_dim", c.rope_dim),
                ("window", c.window),
                ("topk", c.topk),
            ]
        };
        for ((key, own), (_, other)) in sizes(model).into_iter().zip(sizes(&config)) {
            if own != other {
                return Err(unlike(format!(
                    "its `{key}` is {other}, that of the probed run {own}; a twin has the same shapes"
                )));
            }
        }
        if model.values != config.values {
            return Err(unlike(format!(
                "its values are {}, those of the probed run {}; a twin has the same",
                config.values.name(),
                model.values.name()
            )));
        }
        let theta = |c: &ModelConfig| (c.rope_theta.to_bits(), c.compress_rope_theta.to_bits());
        if theta(model) != theta(&config) || model.yarn != config.yarn {
            return Err(unlike("its rotary frequencies are others; a twin has the same".into()));
        }
        let mut layers = Vec::new();
        let mut lacking = 0;
        for (own, other) in model.layers.layers().iter().zip(config.layers.layers()) {
            let lacks = matches!(own.mode, Mode::Reuse | Mode::Reindex | Mode::Stale);
            if probed(own.index)
                && (lacks || own.mode == Mode::Full)
                && other.mode == Mode::Full
                && own.ratio == other.ratio
            {
                lacking += usize::from(lacks);
                layers.push((own.index, run.attention(own.index, device).map_err(ProbeError::Twin)?));
            }
        }
        if lacking == 0 {
            return Err(unlike(format!(
                "of its mix `{}` no layer is `full` with the same ratio where the probed run's `{}` reads what another layer made",
                config.layers, model.layers
            )));
        }
        Ok(Self { folder: folder.to_path_buf(), step: run.state().step, config, layers })
    }

    /// Its layer of this number, where it is a twin.
    pub(super) fn layer(&self, index: usize) -> Option<&Attention> {
        self.layers.iter().find(|(layer, _)| *layer == index).map(|(_, attention)| attention)
    }
}
