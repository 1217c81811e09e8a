"""Half an hour of short rows through one application: nothing may grow. ``make soak`` runs it."""
