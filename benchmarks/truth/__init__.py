"""Parts of plan_truth.py: reading reports of real servers, and one judge per engine."""
