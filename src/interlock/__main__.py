"""``python -m interlock``."""

from interlock.app import main

if __name__ == "__main__":
    main()
