"""What the stages of training share: schedule, checkpoints, the loop, several processes."""
