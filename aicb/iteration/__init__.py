"""Time of one iteration of a serving instance, composed from the times of its operators."""
