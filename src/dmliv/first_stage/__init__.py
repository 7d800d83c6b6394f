"""The first stage: outcome model, action model, and the cross-fitting that fills rows with both."""
