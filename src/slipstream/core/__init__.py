"""Truth: noise, sampling, draft trees, verification and the protocols. numpy only, no input or output."""
