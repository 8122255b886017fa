"""From a recipe to a trained model: the only place that hands a recipe's values to the stages."""
