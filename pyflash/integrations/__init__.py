"""pyflash inside other libraries; each module here needs the one it is named after."""
