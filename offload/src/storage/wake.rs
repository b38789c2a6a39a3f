//! The bell of an engine.

/// Ends an engine's wait from another thread.
pub(crate) trait Wake: Send + Sync {
    /// The next or present [`Engine::turn`](super::engine::Engine::turn) returns at once.
    fn wake(&self);
}
