from __future__ import annotations

TokensPrompt = dict
