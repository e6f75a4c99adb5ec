"""What each lane is made of in AWS. Imported by the stacks."""
